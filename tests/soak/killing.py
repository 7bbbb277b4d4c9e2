"""Lets callers call a server, kills it at random moments, and checks the books while it is down."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from soak.books import Findings, Sqlite, compare_answers, look
from soak.callers import Asked, BuildServer, Caller, Mate, Person, Program, Terminal
from soak.peers import Peers
from soak.world import TWO_AT_ONCE, Deployment, Server, furnish

KINDS: tuple[type[Caller], ...] = (Mate, Person, BuildServer, Program, Terminal)
WHILE_STARTING = 0.15
"""The share of starts that are killed before the server is ready."""
PROGRAMS = (0, 0, 1, 1, 2)
"""How many of the programs that a server runs are killed in its life, at most."""
MAX_LIFE = 2.0
PATIENCE = 600.0
"""Seconds after which a question without an answer is a finding."""


@dataclass(frozen=True, kw_only=True)
class Soak:
    """What is done."""

    kills: int
    seconds: float = 0
    kill_every: float = 0
    servers: int = 1
    networks: bool = False
    """Whether each of several is in a separate network, whose cable to the database is pulled out."""
    sessions: int = 20
    agents: int = 0
    """Agents with the official MCP SDK, in addition to those of the sessions."""
    think: float = 1.0
    look_every: int = 50


@dataclass
class Soaked:
    """The result."""

    findings: Findings = field(default_factory=Findings)
    asked: list[Asked] = field(default_factory=list)
    kills: int = 0
    while_starting: int = 0
    programs: int = 0
    commands: int = 0
    standstills: int = 0
    """How often one of several servers was suspended, and another was cut off from the database."""
    outages: int = 0
    """How often the database of several was restarted."""
    looks: int = 0
    seconds: float = 0
    longest_start: float = 0
    memory: list[int] = field(default_factory=list)


class _Killing:
    def __init__(
        self, chosen: Soak, server: Server, callers: list[Caller], tell: Callable[[str], None]
    ) -> None:
        self._chosen, self._server, self._callers, self._tell = chosen, server, callers, tell
        self._dice = random.Random("soak")
        self._began = time.monotonic()
        self.done = Soaked()

    @property
    def asked(self) -> list[Asked]:
        return [one for caller in self._callers for one in caller.asked]

    async def go_on(self) -> None:
        """Kill until that was often, or long, enough; the server is up when it returns."""
        while not self._is_enough():
            await self._round()
            if self.kills >= (self.done.looks + 1) * self._chosen.look_every:
                await self.look()
            await self._start()
        self.done.seconds = time.monotonic() - self._began

    @property
    def kills(self) -> int:
        """How often anything was killed."""
        self.done.commands = sum(one.kills for one in self._callers if isinstance(one, Terminal))
        return self.done.kills + self.done.programs + self.done.commands

    def _is_enough(self) -> bool:
        if self._chosen.seconds:
            return time.monotonic() - self._began >= self._chosen.seconds
        return self.kills >= self._chosen.kills

    async def _round(self) -> None:
        """Keep it alive for a while, kill programs that it runs, and then kill it."""
        chosen, dice, done = self._chosen, self._dice, self.done
        over = time.monotonic() + (chosen.kill_every or dice.uniform(0, MAX_LIFE))
        for left in range(dice.choice(PROGRAMS), 0, -1):
            await asyncio.sleep(dice.uniform(0, (over - time.monotonic()) / left))
            while not (is_killed := self._server.kill_a_program(dice)) and time.monotonic() < over:
                await asyncio.sleep(0.01)
            done.programs += is_killed
        await asyncio.sleep(over - time.monotonic())
        if chosen.kill_every or done.kills % 25 == 0:
            done.memory.append(self._server.memory())
        await self._server.kill()
        done.kills += 1

    async def _start(self) -> None:
        """Start it, and perhaps kill it before it is ready."""
        await self._server.spawn()
        if not self._chosen.kill_every and not self._is_enough() and self._dice.random() < WHILE_STARTING:
            await asyncio.sleep(self._dice.uniform(0, MAX_LIFE))
            await self._server.kill()
            self.done.kills += 1
            self.done.while_starting += 1
            await self._server.spawn()
        await self._server.ready()

    async def look(self) -> None:
        """Compare the books of the server, which is down."""
        found, states = await look(Sqlite(self._server.database), self.asked)
        accepted = states.pop("accepted")
        adds_up = "=" if accepted == sum(states.values()) else "IS NOT"
        parts = " + ".join(f"{number} {state}" for state, number in sorted(states.items()))
        self.done.looks += 1
        for kind, sentences in vars(found).items():
            getattr(self.done.findings, kind).extend(sentences)
        self._tell(
            f"{time.monotonic() - self._began:6.0f} s, {self.kills} kills: "
            f"{accepted} chat messages {adds_up} {parts}; {found}"
        )


def close(done: Soaked, callers: list[Caller], around: Peers, logs: list[Path]) -> None:
    """Check the confirmations of callers, the concurrent work, and the servers' logs."""
    done.asked = [one for caller in callers for one in caller.asked]
    compare_answers(done.asked, done.findings)
    history = done.findings.history
    for caller in callers:
        if isinstance(caller, Mate) and caller.inbox != list(range(1, len(caller.inbox) + 1)):
            history.append(f"the inbox of {caller.name} has a gap: {caller.inbox}")
    history += around.two_at_once + around.telegram.two_at_once
    noted = callers[0].server.yard / TWO_AT_ONCE
    if noted.exists():
        history += [f"{thread} has two programs at once" for thread in noted.read_text().split()]
    for log in logs:
        history += unexpected(log.read_text().splitlines())


def make_callers(chosen: Soak, deployment: Deployment, around: Peers) -> tuple[list[Caller], list[str]]:
    """Return the callers, and the names of the agents among them."""
    kinds = [KINDS[number % len(KINDS)] for number in range(chosen.sessions)] + [Mate] * chosen.agents
    there = Counter[type[Caller]]()
    callers = []
    for kind in kinds:
        callers.append(kind(there[kind], deployment, around, chosen.think))
        there[kind] += 1
    agents = [one.name for one in callers if isinstance(one, Mate)]
    for kind in (Mate, Terminal):
        kind.mates = sum(name.startswith(kind.kind) for name in agents)
    return callers, agents


async def until_answered(
    callers: list[Caller], work: Awaitable[None], waits: Callable[[], None] = lambda: None
) -> None:
    """Make callers ask until the work is done, and wait for the answers.

    `waits` is called when only answers are missing; an answer missing after `PATIENCE` is found later (`compare_answers`).
    """
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(caller.work(stop)) for caller in callers]
        await work
        stop.set()
        waits()
        await asyncio.wait(asking, timeout=PATIENCE)
        for task in asking:
            task.cancel()


async def soak(chosen: Soak, folder: Path, tell: Callable[[str], None]) -> Soaked:
    """Soak a server over data in a folder, and return what came of it."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Peers().serving() as around:
        server = Server(folder)
        callers, agents = make_callers(chosen, server, around)
        killing = _Killing(chosen, server, callers, tell)
        try:
            await furnish(server, around, agents)
            await server.spawn()
            await server.ready()
            await until_answered(callers, killing.go_on())
            if await server.stop() != 0:
                killing.done.findings.history.append("the server did not end in order")
        finally:
            await server.kill()
        await killing.look()
        killing.done.longest_start = server.longest_start
        close(killing.done, callers, around, [server.log])
    return killing.done


def unexpected(log: list[str]) -> list[str]:
    """Return the lines of a server's log that hold a traceback.

    Killed programs, a killed launcher, and a slow model on a busy machine do not count: the next attempt
    gives the answer.
    """
    no_launcher = "could not be started at the moment: "
    expected = (
        "CommandKilled",
        "errors.InferenceTimeout",
        f"{no_launcher}the process that starts programs ended with exit code -9",
        f"{no_launcher}Broken pipe",
        f"{no_launcher}Connection reset by peer",
    )
    return [line[:3000] for line in log if "Traceback" in line and not any(one in line for one in expected)]
