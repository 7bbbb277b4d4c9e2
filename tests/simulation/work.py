"""The work of runs, by their scripts, and the observations during it.

The content of a run is its script: `[["wait", 300], ["step", "a", 20], ["ask", "ok?"], ["fail", 2], ...]`. After each
part the run notes that it acts; by these notes the owners of a thread are compared.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from postroom.embedded.running import Function, Run
from simulation.loop import SimulatedLoop
from simulation.mail import Agents
from simulation.servers import Server

_ACTS_EVERY_MS = 300


@dataclass(eq=False)
class Execution:
    """One execution of a run, as the code that executes saw it."""

    server: Server
    run_id: str
    thread: str
    attempt: int
    began: int
    n: object = None
    """The number of the job in the content of the run."""
    is_over: bool = False
    is_stubborn: bool = False
    """Whether it got a cancel and ignores it."""
    overtaken_by: "Execution | None" = None


@dataclass
class Watch:
    """All executions, and their faults."""

    loop: SimulatedLoop
    has_ended: Callable[[str], bool]
    claimed_ms: Callable[[str], int]
    """Tells when the claim of a run was written, in milliseconds of the world."""
    note: Callable[[str], None] | None = None
    seen: list[Execution] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a step was executed."""
    heard: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The answers that a run was given, by the run."""
    kept: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often the result of a step was returned as kept."""
    interrupted: set[str] = field(default_factory=set)
    """Threads whose runs callers end while they execute."""
    cancelled: dict[str, int] = field(default_factory=dict)
    """When a caller learned that a run is cancelled."""
    reads: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The runs that have read the message of a job, by its number."""
    notes: set[str] = field(default_factory=set)
    """The notes that runs got as stored."""
    platform: Any = None
    """The platform of a chat world."""
    scripts: dict[int, list[list[Any]]] = field(default_factory=dict)
    """The acts of agents for the message of a job, by its number."""
    failures: Counter[str] = field(default_factory=Counter)
    """How often a run has failed as its script says."""

    def begin(self, server: Server, run: Run) -> Execution:
        """Note that an execution begins."""
        loop = self.loop
        n = run.data.get("n") if isinstance(run.data, dict) else None
        one = Execution(server, run.id, run.thread_id, run.attempt, loop.ms, n)
        told_at = self.cancelled.get(run.id)
        if told_at is not None and loop.ms > told_at + 1_000 and self.claimed_ms(run.id) > told_at + 500:
            self.found.append(
                f"CANCELLED RUN BEGINS: {server.name} begins {run.id} at {loop.ms}; at {told_at} a caller was told that it is cancelled"
            )
        for other in self.seen:
            if other.thread == one.thread and not other.is_over and not other.server.process.is_dead:
                other.overtaken_by = one  # wrong only if it acts from now on
        self.seen.append(one)
        if self.note is not None:
            self.note(f"{server.name} begins {run.id} of {run.thread_id}, attempt {run.attempt}")
        return one

    def act(self, one: Execution) -> None:
        """Note that an execution acts."""
        if one.is_stubborn:
            return
        if one.thread not in self.interrupted and self.has_ended(one.run_id):
            self.found.append(
                f"ACTS AFTER END: {one.server.name} acts at {self.loop.ms} for run {one.run_id}, which has ended"
            )
        if (other := one.overtaken_by) is not None:
            self.found.append(
                f"TWO OWNERS of thread {one.thread}: {one.server.name} acts at {self.loop.ms} for run {one.run_id}, "
                f"and {other.server.name} has begun {other.run_id} at {other.began}"
            )
            one.overtaken_by = None  # reported once

    def agents(self, server: Server) -> Agents:
        """Return what runs the agents of a mail world at a server."""
        return Agents(server, self, self.scripts)

    def work(self, server: Server) -> Function:
        """Return the function that a server executes for each run."""

        async def scripted(run: Run) -> object:
            one = self.begin(server, run)
            server.executing[run.id] += 1
            try:
                return await self._follow(run, one)
            finally:
                one.is_over = True
                server.executing[run.id] -= 1
                if self.note is not None:
                    self.note(f"{server.name} leaves {run.id}")

        return scripted

    async def _follow(self, run: Run, one: Execution) -> str:
        told = run.data if isinstance(run.data, dict) else {"script": [], "n": "?"}
        for number, (what, *about) in enumerate(told["script"]):
            match what:
                case "wait":
                    await self.wait(one, about[0])
                case "stubborn":
                    await self._stubborn(one, about[0])
                case "step":
                    await self._step(run, one, *about)
                case "ask":
                    self.heard[run.id].add((await run.ask(about[0])).text)
                case "ask for":
                    answer = await run.ask(about[0], timeout=timedelta(milliseconds=about[1]))
                    self.heard[run.id].add(answer.text)
                case "sleep":
                    await run.sleep(timedelta(milliseconds=about[0]), name=f"sleep {number}")
                case "stream":
                    await run.stream(about[0])
                case "log":
                    await run.log(about[0])
                case "fail":
                    if self.failures[run.id] < about[0]:
                        self.failures[run.id] += 1
                        self.act(one)
                        raise ConnectionError(f"failure {self.failures[run.id]} of {about[0]}")
            self.act(one)
        return answer_of(told["n"])

    async def wait(self, one: Execution, ms: int) -> None:
        """Work for this long, and note now and then that the execution acts."""
        while ms > 0:
            await self.loop.passes(min(ms, _ACTS_EVERY_MS))
            if (ms := ms - _ACTS_EVERY_MS) > 0:
                self.act(one)

    async def _step(self, run: Run, one: Execution, name: str, takes: int) -> None:
        async def effect() -> str:
            await self.loop.passes(takes)
            self.act(one)
            self.effects[run.id, name] += 1
            if self.kept[run.id, name]:
                self.found.append(
                    f"STEP REPEATED: step {name} of {run.id} executes again, and its result was kept"
                )
            return f"did {name}"

        await run.step(name, effect)
        self.kept[run.id, name] += 1

    async def _stubborn(self, one: Execution, ms: int) -> None:
        """Work for this long, and ignore all commands."""
        until = self.loop.ms + ms
        while (left := until - self.loop.ms) > 0:
            try:
                await self.loop.passes(left)
            except asyncio.CancelledError:
                one.is_stubborn = True


def answer_of(number: Any) -> str:
    """Return the answer of a run that comes to its natural end."""
    return f"answer {number}"
