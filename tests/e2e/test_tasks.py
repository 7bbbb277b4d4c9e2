"""64 agents race for the tasks of a real server over MCP, while agents freeze or vanish and the server is killed.

Every caller repeats a call without an answer under its key. The log decides at the end: no task ever had two
holders, each was done once, and each late `done` was refused.
"""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Cut, Line, Refused, RunningServer, soon
from task_log import check_claims

FOLDER = "/yard/tasks"
CALLERS = 64
CREW = tuple(f"Mate{number}" for number in range(CALLERS))
PATIENCE = 240.0
GONE = 8
"""Claims of agents that vanish or freeze, in all."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture
def killed_server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        with running.line() as line:
            line.crew(FOLDER, *CREW)
        yield running


@dataclass(slots=True)
class Race:
    """The state that all callers share."""

    server: RunningServer
    tasks: int
    folder: str = FOLDER
    finished: list[tuple[int, int]] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    up: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        return len(self.finished) >= self.tasks

    def note(self, into: list[Any], one: Any) -> None:
        with self.changed:
            into.append(one)
            self.changed.notify_all() if self.is_over else self.changed.notify(2)

    def kill_at(self, finished: int) -> None:
        """Kill the server and start it again, once this many tasks are finished."""
        soon(lambda: len(self.finished) >= finished, f"{finished} tasks are finished", patience=PATIENCE)
        self.up.clear()
        self.server.kill()
        self.server.start()
        self.up.set()

    def await_server(self) -> None:
        """Return when the server runs, which is killed and started again meanwhile."""
        if not self.up.is_set():
            soon(self.up.is_set, "the server runs again", patience=PATIENCE)

    def check(self, numbers: list[int]) -> None:
        """Fail unless each task was done once, by its only holder, as the log of the project says."""
        assert sorted(number for number, _ in self.finished) == numbers
        events = log_of(self.server, self.folder)
        assert check_claims(events) == {}
        told = [
            (one["detail"]["task_id"], one["detail"]["epoch"]) for one in events if one["kind"] == "task.done"
        ]
        assert sorted(told) == sorted(self.finished)


@dataclass(slots=True)
class Caller:
    """One agent with a separate connection, which it opens again after the server was killed."""

    race: Race
    name: str
    line: Line | None = None

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool until there is an answer, each time with the same key."""
        key = (
            {} if tool == "list_tasks" else {"agent_name": self.name, "idempotency_key": arguments.pop("key")}
        )
        for _ in range(50):
            self.race.await_server()
            try:
                self.line = self.line or self.race.server.line()
                return self.line.tool(tool, project_key=self.race.folder, **key, **arguments)
            except (Cut, OSError):
                with suppress(OSError):
                    self.line and self.line.close()
                self.line = None
        raise AssertionError("the server does not answer")

    def work(self) -> None:
        """Claim and finish tasks until all are done; a few claims are left, or finished too late."""
        for turn in count():
            if self.race.is_over:
                break
            is_gone = len(self.race.gone) < GONE and turn % 2 == 1
            asked = {"ttl_seconds": 1} if is_gone else {}
            task = self.call("claim_task", key=f"{self.name} claims {turn}", **asked)["task"]
            if task is None:
                with self.race.changed:
                    self.race.changed.wait(1.0)
                continue
            if not is_gone:
                self.finish(task, f"{self.name} ends {turn}")
                self.race.note(self.race.finished, (task["id"], task["epoch"]))
                continue
            self.race.note(self.race.gone, task["id"])
            if CREW.index(self.name) % 2:  # the others vanish
                self.freeze(task)
                with pytest.raises(Refused, match="task_not_held"):
                    self.finish(task, f"{self.name} ends {turn}")
                self.race.note(self.race.refused, (task["id"], task["epoch"]))
        if self.line is not None:
            self.line.close()

    def finish(self, task: dict[str, Any], key: str) -> None:
        self.call("done_task", task_id=task["id"], epoch=task["epoch"], key=key)

    def freeze(self, task: dict[str, Any]) -> None:
        """Do nothing until the lease of a claim has ended."""

        def is_lost() -> bool:
            [found] = self.call("list_tasks", task_id=task["id"])["tasks"]
            return (found["holder"], found["epoch"]) != (self.name, task["epoch"])

        soon(is_lost, "the lease ends")


@pytest.mark.parametrize("tasks", [200, 1000])
def test_no_task_has_two_holders_and_none_is_lost(killed_server: RunningServer, tasks: int) -> None:
    server, draw, numbers = killed_server, random.Random(tasks), list[int]()
    with server.line() as line:
        for number in range(tasks):
            before = draw.sample(numbers, min(len(numbers), draw.choice((0, 0, 1, 2))))
            paths = [f"src/{draw.randrange(100)}.py"] if number % 2 else []
            terms = {"title": f"task {number}", "depends_on": before, "paths": paths}
            added = line.tool("add_task", project_key=FOLDER, agent_name=CREW[0], **terms)
            numbers.append(added["id"])
    race = Race(server, tasks)
    race.up.set()
    with ThreadPoolExecutor(CALLERS) as pool:
        working = [pool.submit(Caller(race, name).work) for name in CREW]
        race.kill_at(tasks // 3)
        for one in working:
            one.result(PATIENCE)
    race.check(numbers)
    assert len(race.gone) >= GONE
    assert race.refused, "no frozen agent was refused"
    assert "Traceback" not in server.log()
    print(f"\n{len(numbers)} tasks, {len(race.gone)} agents gone, {len(race.refused)} late calls refused")


def log_of(server: RunningServer, folder: str) -> list[dict[str, Any]]:
    """Return the log of the project."""
    found, after = list[dict[str, Any]](), 0
    with server.line() as line:
        while True:
            page = line.tool("fetch_events", project_key=folder, after=after, limit=1000)
            found += page["events"]
            if page["next"] == after:
                return found
            after = page["next"]
