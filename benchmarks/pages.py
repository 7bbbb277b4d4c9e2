"""What pages cost on top of an empty one, and what they cost MCP calls, with a long history stored."""

import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Table, median, ms, p95, size
from benchmarks.http import REVISIONS, Server, load, serving
from postroom.app.config import load_settings
from postroom.app.wiring import Application
from postroom.contracts.mail import Project
from postroom.contracts.runs import RunRecord, RunStatus, TerminationReason, Thread
from postroom.stores.mail.access import MailWrites
from postroom.stores.store import Transaction

MESSAGES = size(1_000_000, 400)
RUNS = size(10_000, 40)
AGENTS = size(100, 6)
SMALL = size(1_000, 20)
ROUNDS = size(40, 2)
CALLS = size(10_000, 50)
TURNS = size(5, 1)
DAY = 86_400_000
LENGTH = 30 * DAY
"""What is stored happened within so long."""
PAGE = 2_000
BIG, LITTLE = "/bench/orchard", "/bench/lake"
WORDS = "The total of a basket is too low, and a test fails. Please mend it, and say what you think. " * 2


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        asyncio.run(fill(Path(folder)))
        measure(Path(folder))


def measure(folder: Path) -> None:
    """Serve a folder that was filled, and print what its pages cost."""
    with serving("short", "httptools", folder=folder) as server:
        _pages(server)
        _effect(server)


def _addresses(newest: int) -> dict[str, str]:
    big, little = "/p/bench-orchard", "/p/bench-lake"
    timeline, now = f"{big}/timeline", int(time.time() * 1000)
    return {
        "projects": "/",
        "control room": big,
        "threads": f"{big}/threads",
        "a thread": f"{big}/t/t7",
        "a message": f"{big}/m/{newest}",
        "agents": f"{big}/agents",
        "an agent": f"{big}/agents/Agent1",
        "runs": f"{big}/runs",
        "a run": f"{big}/runs/{_run_id(0)}",
        "questions": f"{big}/questions",
        "reservations": f"{big}/reservations",
        "schedules": f"{big}/schedules",
        "write": f"{big}/write",
        "search, a rare word": f"{big}/search?q=rare77",
        "search, a word of all": f"{big}/search?q=common",
        "search, a word of all, best first": f"{big}/search?q=common&order=best",
        "search in a small project": f"{little}/search?q=common",
        "search in a small project, best first": f"{little}/search?q=common&order=best",
        "control room of a small project": little,
        "timeline, 8 hours": timeline,
        "timeline, 15 minutes long ago": f"{timeline}?from={now - 20 * DAY}&to={now - 20 * DAY + 900_000}",
        "timeline, all": f"{timeline}?span=all",
        "timeline, all of an agent": f"{timeline}?span=all&agent=Agent1",
        "timeline, all of a thread": f"{timeline}?span=all&thread=t7",
    }


def _pages(server: Server) -> None:
    table = Table(f"Pages, with {MESSAGES:,} messages, {RUNS:,} runs and {AGENTS} agents")
    asked = {"empty": "/p/nowhere", **_addresses(MESSAGES)}
    taken: dict[str, list[float]] = {what: [] for what in asked}
    for number in range(ROUNDS + 1):
        for what, path in asked.items():
            seconds = look(server, path, may_fail=what == "empty")
            if number:  # the first look fills the caches
                taken[what].append(seconds)
    empty = median(taken.pop("empty"))
    for what, found in taken.items():
        table.add(
            what,
            f"p95 {ms(p95(found))} (median {ms(median(found))})",
            f"a page that is not there {ms(empty)}",
            None,
            f"p95 at most 100 ms on top: {ms(p95(found) - empty)}",
        )


def _effect(server: Server) -> None:
    """Take turns: calls alone, and calls while somebody loads pages."""
    table = Table("MCP calls while somebody loads every page in turn, 4 connections")
    paths = list(_addresses(MESSAGES).values())
    for what, pause in {"one page a second": 1.0, "two pages a second": 0.5, "without a pause": 0.0}.items():
        alone, beside = [], []
        for _ in range(TURNS):
            alone.append(load(server, REVISIONS[0], 4, calls=CALLS))
            with _reader(server, pause, paths):
                beside.append(load(server, REVISIONS[0], 4, calls=CALLS))
        ours, limit = median([one.p95 for one in beside]), median([one.p95 for one in alone])
        table.add(f"p95, {what}", ms(ours), f"alone {ms(limit)}", ours / limit, "at most 1.1 at one a second")


@contextlib.contextmanager
def _reader(server: Server, pause: float, paths: list[str]) -> Iterator[None]:
    words = [sys.executable, "-m", "benchmarks.pages", "read", server.url, server.token, str(pause), *paths]
    process = subprocess.Popen(words)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def look(server: Server, path: str, *, may_fail: bool = False) -> float:
    """Return the seconds that a page takes; unless it may fail, end the benchmark if it does."""
    request = urllib.request.Request(
        server.url + path, headers={"Authorization": f"Bearer {server.token}", "Accept": "text/html"}
    )
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as refused:
        if not may_fail:
            raise SystemExit(f"{path}: {refused.code}") from refused
        refused.read()
    return time.perf_counter() - began


def _run_id(number: int) -> str:
    return f"{number:032x}"


async def fill(folder: Path) -> None:
    """Store two projects: one with a long history and many agents, and a small one beside it."""
    settings = load_settings(environment={}, overrides={"data_dir": str(folder), "archive_enabled": False})
    with contextlib.closing(Application.open(settings)) as application:
        begin = int(time.time() * 1000) - LENGTH
        for key, messages, agents in ((LITTLE, SMALL, 5), (BIG, MESSAGES - SMALL, AGENTS)):
            await application.mail.call("ensure_project", {"human_key": key})
            for number in range(agents):
                made = {"project_key": key, "program": "bench", "model": "none", "name": f"Agent{number}"}
                await application.mail.call("register_agent", made)
            for first in range(0, messages, PAGE):
                count = range(first, min(first + PAGE, messages))
                step = LENGTH // messages
                await application.store.write(
                    lambda tx, key=key, count=count, step=step: store_messages(tx, key, count, begin, step)
                )
        store = application.runs.stores.store
        for first in range(0, RUNS, 500):
            count = range(first, min(first + 500, RUNS))
            await store.write(
                lambda tx, count=count: store_runs(tx, BIG, count, begin, LENGTH // RUNS), key="runs"
            )
        await application.store.settle()


def store_messages(tx: MailWrites, key: str, numbers: range, begin: int, step: int) -> None:
    """Store messages of a project's agents, one each `step` milliseconds."""
    project = _stored(tx, key)
    agents = tx.agents(project.id, include_retired=False, limit=200)
    for number in numbers:
        message = tx.insert_message(
            project_id=project.id,
            sender=agents[number * 7 % len(agents)],
            thread_id=f"t{number % 5_000}",
            subject=f"Report {number} on module{number % 97}",
            body_md=f"common words here and word{number % 9_973} beside rare{number} {WORDS}",
            importance="normal",
            ack_required=False,
            topic="",
            broadcast=False,
            reply_to=None,
            now=begin + number * step,
        )
        tx.insert_recipient(message.id, agents[(number * 3 + 1) % len(agents)], "to")


def _stored(tx: MailWrites, key: str) -> Project:
    project = tx.project(key)
    if project is None:
        raise SystemExit(f"{key} is not stored")
    return project


def store_runs(tx: Transaction, key: str, numbers: range, begin: int, step: int) -> None:
    """Store runs of a project's agents that have ended, one each `step` milliseconds."""
    project = _stored(tx.mail, key)
    agents = tx.mail.agents(project.id, include_retired=False, limit=200)
    chance = random.Random(numbers.start)
    for number in numbers:
        agent, at = agents[number % len(agents)], begin + number * step
        ended = at + chance.randrange(1_000, 600_000)
        run_id, thread = _run_id(number), f"agent:{project.slug}/{agent.name}"
        if tx.runs.threads.load(thread) is None:
            tx.runs.threads.put(Thread(id=thread, created_at=at, updated_at=at))
        tx.runs.threads.create_run(
            RunRecord(
                run_id=run_id,
                thread_id=thread,
                status=RunStatus.DONE,
                termination=TerminationReason.natural_end(),
                final_output="The total of a basket is right again.",
                created_at=at,
                started_at=at,
                finished_at=ended,
                updated_at=ended,
            )
        )
        tx.mail.begin_run(run_id, agent.id, at)
        tx.mail.end_run(run_id, "failed" if chance.random() < 0.05 else "done", now=ended)


def _read_for_ever(url: str, token: str, pause: float, paths: list[str]) -> None:
    server = Server(0, url, token)
    while True:
        for path in paths:
            look(server, path)
            time.sleep(pause)


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["read", at, shown, pause, *paths]:
            _read_for_ever(at, shown, float(pause), paths)
        case ["fill", folder]:
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(parents=True)
            asyncio.run(fill(Path(folder)))
        case ["measure", folder]:
            measure(Path(folder))
