"""Callers race for tasks with dependencies, four of them real clients, while agents and the server are killed.

Each real client is killed once and frozen once past its lease, in both cases while it holds a task. The others speak MCP
over HTTP. The log decides at the end: no task had two holders, each was done once, each late `done` was refused.
"""

import os
import random
import re
import signal
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pytest

from e2e.running import Cut, soon
from e2e.test_tasks import GONE, Caller, Race
from machine import Bound
from real_clients.asked import Asked, CallTool, Say, Step
from real_clients.clients import PROGRAMS, Client
from real_clients.home import PATIENCE, Home
from real_clients.model_server import ModelServer
from real_clients.test_setup import trust_hooks

CLIENTS: Final = {"anthropic": "claude", "responses": "codex", "gemini": "gemini", "chat": "opencode"}
"""The client that asks its model in each wire format."""
FROZEN, KILLED = 1, 2
"""The claims of each client at which it is frozen and killed."""
OWN: Final = 3
"""Tasks that are for one client only, so that each client gets as far as its last incident."""
IN_A_TURN: Final = 20
UNREADABLE: Final = 3
"""Answers in a row that are not from postroom, after which the turn ends.

A client that starts while the server is away may have no tools of postroom until its next turn.
"""
LONGEST: Final = 600.0
"""Seconds of a machine with nothing else to do."""
CLAIMED: Final = re.compile(r'"task":\s*\{.*?"id":\s*(\d+),.*?"epoch":\s*(\d+),', re.DOTALL)
NOTHING: Final = re.compile(r'"task":\s*null')
DONE: Final = re.compile(r'"state":\s*"done"')
pytestmark = pytest.mark.timeout(4 * LONGEST)


@dataclass(slots=True)
class Worker:
    """A real client that claims and finishes tasks, turn after turn; its model follows this script."""

    race: Race
    home: Home
    client: Client
    calls: CallTool | None = None
    """The call without an answer so far."""
    task: tuple[int, int] | None = None
    """The claimed task and its epoch."""
    claims: int = 0
    turn: int = 0
    """Tasks of this turn."""
    unreadable: int = 0
    """Answers in a row, in this turn, that are not from postroom."""
    asked: int = 0
    """The client's requests to the model."""
    late: list[tuple[int, int]] = field(default_factory=list)
    """Claims that ended before their `done` was sent."""
    keys: "count[int]" = field(default_factory=count)
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """A client that was killed may be followed by its next turn while the script still waits for the end of the lease."""

    @property
    def name(self) -> str:
        return self.client.name.capitalize()

    def work(self) -> None:
        """Start a turn repeatedly until all tasks are done."""
        flags = (*self.client.allowing, *self.client.trusting)
        environment = {**self.home.environment, "POSTROOM_AGENT": self.name}
        bound = Bound(LONGEST)
        while not self.race.is_over:
            assert not bound.has_passed(), f"{self.name} holds {self.task}: {self.home.model.story()[-3000:]}"
            self.turn, self.unreadable, said = 0, 0, self.home.path / f"{self.client.name}.out"
            with said.open("wb") as out:
                self.process = subprocess.Popen(
                    self.client.talk("Work on the tasks of the project.", *flags),
                    cwd=self.home.project,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            code = self._wait()
            assert code in (0, -signal.SIGKILL), (
                f"{self.name} ended with {code}: {said.read_bytes()[-3000:]!r}"
            )

    def _wait(self) -> int:
        """Return the exit code of the turn; a client that hangs is killed, and its next turn continues."""
        assert self.process is not None
        bound, asked = Bound(PATIENCE), self.asked
        while True:
            try:
                return self.process.wait(bound.wait())
            except subprocess.TimeoutExpired:
                if self.asked > asked:
                    bound, asked = Bound(PATIENCE), self.asked
                elif bound.has_passed():
                    self._signal(signal.SIGKILL)

    def _signal(self, kind: signal.Signals) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, kind)

    def step(self, asked: Asked) -> Step:
        """Read the answer to the last call, and return the next call."""
        self.asked += 1
        with self.lock:
            return self._step(asked)

    def _step(self, asked: Asked) -> Step:
        if not asked.ours and asked.tool("tool_search") and not asked.returned:
            return CallTool("tool_search", {"query": "postroom task", "limit": 100})
        self.race.await_server()
        if asked.returned and self.calls is not None:
            self._read(asked.returned[-1].replace("\\", ""))
            self.unreadable = 0 if self.calls is None else self.unreadable + 1
            if self.unreadable >= UNREADABLE:
                return Say("I cannot call postroom.")  # the next turn repeats the call under its key
        if self.calls is None:
            if self.turn >= IN_A_TURN or self.race.is_over:
                return Say("I have worked.")
            self._next()
        assert self.calls is not None
        return self.calls

    def _read(self, text: str) -> None:
        """Note what an answer says. A call without an answer is repeated under its key."""
        if self.task is None and (found := CLAIMED.search(text)):
            self.calls, self.task = None, (int(found[1]), int(found[2]))
            self.claims += 1
            self._suffer()
        elif self.task is None and NOTHING.search(text):
            self.calls = None
            with self.race.changed:
                self.race.changed.wait(0.5)
            self.turn += 1
        elif self.task is not None and (DONE.search(text) or "task_not_held" in text):
            into = self.race.refused if "task_not_held" in text else self.race.finished
            self.race.note(into, self.task)
            self.calls, self.task = None, None
            self.turn += 1

    def _suffer(self) -> None:
        """Freeze or kill the client that waits for its model, and return when its lease has ended."""
        assert self.task is not None
        if self.claims not in (FROZEN, KILLED):
            return
        task, is_killed = self.task, self.claims == KILLED
        self.race.note(self.race.gone, task[0])
        self._signal(signal.SIGKILL if is_killed else signal.SIGSTOP)
        soon(lambda: self._is_lost(task), f"the lease of {self.name} ends")
        if is_killed:
            self.task = None
        else:
            self.late.append(task)
            self._signal(signal.SIGCONT)

    def _is_lost(self, task: tuple[int, int]) -> bool:
        self.race.await_server()
        with suppress(Cut, OSError), self.race.server.line() as line:
            [found] = line.tool("list_tasks", project_key=self.race.folder, task_id=task[0])["tasks"]
            return (found["holder"], found["epoch"]) != (self.name, task[1])
        return False

    def _next(self) -> None:
        """Choose the next call: finish the task that is held, or claim the next task."""
        here = {"project_key": self.race.folder, "agent_name": self.name}
        key = f"{self.name} {next(self.keys)}"
        if self.task is not None:
            held = {"task_id": self.task[0], "epoch": self.task[1]}
            self.calls = CallTool("done_task", {**here, **held, "idempotency_key": key})
            return
        is_short = self.claims + 1 in (FROZEN, KILLED)
        terms = {"ttl_seconds": 2} if is_short else {}
        self.calls = CallTool("claim_task", {**here, **terms, "idempotency_key": key})


@pytest.mark.parametrize(("callers", "tasks", "kills"), [(12, 60, 1), (64, 1000, 3)])
def test_no_task_has_two_holders_and_none_is_lost(
    home: Home, model: ModelServer, callers: int, tasks: int, kills: int
) -> None:
    for name in CLIENTS.values():
        PROGRAMS[name].prepare(home)
    with home.server as server:
        race = Race(server, tasks, str(home.project))
        race.up.set()
        workers = {wire: Worker(race, home, PROGRAMS[name]) for wire, name in CLIENTS.items()}
        model.script = lambda asked: workers[asked.wire].step(asked)
        crew = [f"Mate{number}" for number in range(callers - len(workers))]
        with server.line() as line:
            line.crew(race.folder, *crew, *(one.name for one in workers.values()))
            numbers = _added(race, crew[0], [one.name for one in workers.values()])
        for worker in workers.values():
            home.postroom("setup", worker.client.setup)
        trust_hooks(home)
        with ThreadPoolExecutor(callers) as pool:
            try:
                working = [pool.submit(one.work) for one in workers.values()]
                working += [pool.submit(Caller(race, name).work) for name in crew]
                for kill in range(1, kills + 1):
                    race.kill_at(tasks * kill // (kills + 1))
                soon(lambda: has_ended(working), "all tasks are finished", patience=LONGEST)
                for one in sorted(
                    working, key=lambda one: not one.done()
                ):  # one that failed keeps others waiting
                    one.result()
            finally:
                race.tasks = 0  # the callers that are left end
        race.check(numbers)
        assert "Traceback" not in server.log()
    assert not model.failures, model.failures
    late = {one for worker in workers.values() for one in worker.late}
    assert len(late) == len(workers), "each client is frozen once"
    assert late <= set(race.refused), "each late `done` is refused"
    assert not set(race.refused) & set(race.finished)
    assert len(race.gone) >= GONE
    shares = {one.name: one.claims for one in workers.values()}
    print(
        f"\n{tasks} tasks, {callers} callers, claims of real clients {shares}, {len(race.gone)} agents killed or "
        f"frozen, {kills} kills of the server, {len(race.refused)} late calls refused"
    )


def has_ended(working: "list[Future[None]]") -> bool:
    """Return whether all callers have ended, or one has failed."""
    return all(one.done() for one in working) or any(one.done() and one.exception() for one in working)


def _added(race: Race, author: str, clients: list[str]) -> list[int]:
    """Add the tasks, many of which depend on others; each client has some that are for it only."""
    draw, numbers = random.Random(race.tasks), list[int]()
    own = [name for name in clients for _ in range(OWN)]
    with race.server.line() as line:
        for number in range(race.tasks):
            before = draw.sample(numbers, min(len(numbers), draw.choice((0, 0, 1, 2))))
            terms = {"depends_on": before, "paths": [f"src/{draw.randrange(100)}.py"] if number % 2 else []}
            if number < len(own):
                terms = {"assignee": own[number], "priority": "urgent"}
            added = line.tool(
                "add_task", project_key=race.folder, agent_name=author, title=f"task {number}", **terms
            )
            numbers.append(added["id"])
    return numbers
