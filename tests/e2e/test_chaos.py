"""Processes, and the database, are killed again and again; every run ends once, in order, and none is lost.

`POSTROOM_CHAOS_SECONDS` is for how long things are killed (5 by default), `POSTROOM_CHAOS_RUNS` how many runs
there are at least. The full test is 120 seconds with 5,000 runs.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from postgres_server import PostgresServer
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.runs import RunStatus
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite import SqliteStore
from store_kinds import refuse_missing

SECONDS = float(os.environ.get("POSTROOM_CHAOS_SECONDS", "5"))
RUNS = int(os.environ.get("POSTROOM_CHAOS_RUNS", "400"))
THREADS = 200 if RUNS >= 5_000 else 40
PROGRAM = Path(__file__).with_name("chaos_process.py")
pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS * 4 + 240)]


@dataclass
class Crew:
    """Processes that are killed and started again."""

    place: str
    journal: Path
    size: int
    members: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    kills: int = 0

    def start(self, share: int) -> None:
        words = [self.place, str(self.journal), str(THREADS), str(RUNS), str(share), str(self.size)]
        # It begins with this signal held back, until it can leave in good order.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            with (self.journal.parent / f"worker-{share}.err").open("ab") as errors:
                self.members[share] = subprocess.Popen(
                    [sys.executable, str(PROGRAM), *words], stdout=errors, stderr=errors
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def kill_one(self, chance: random.Random) -> None:
        share = chance.choice(sorted(self.members))
        member = self.members[share]
        member.send_signal(signal.SIGKILL)
        member.wait()
        self.kills += 1
        self.start(share)

    def leave(self) -> None:
        """Let them write what the last runs came to, and end."""
        for member in self.members.values():
            member.send_signal(signal.SIGTERM)
        for member in self.members.values():
            assert member.wait(120) == 0

    def stop(self) -> None:
        for member in self.members.values():
            member.kill()
        for member in self.members.values():
            member.wait()


@pytest.fixture
def crew_of(tmp_path: Path) -> Iterator[object]:
    crews: list[Crew] = []

    def made(place: str, size: int) -> Crew:
        crew = Crew(place, tmp_path / "journal", size)
        crews.append(crew)
        for share in range(size):
            crew.start(share)
        return crew

    yield made
    for crew in crews:
        crew.stop()


def kill_for_a_while(crew: Crew, also=lambda round_number: None) -> None:
    """Kill one a second, restarted at once."""
    chance, pause = random.Random(7), threading.Event()
    until = time.monotonic() + SECONDS
    round_number = 0
    while time.monotonic() < until:
        pause.wait(1)
        crew.kill_one(chance)
        round_number += 1
        also(round_number)


def wait_until_done(crew: Crew) -> None:
    """Return when as many runs have ended as there are, as the journal tells, and the processes have left."""
    pause = threading.Event()
    until = time.monotonic() + SECONDS * 2 + 180
    while len(ended_runs(crew.journal)) < RUNS:
        assert time.monotonic() < until, f"{len(ended_runs(crew.journal))} of {RUNS} runs ended"
        assert all(member.poll() is None for member in crew.members.values()), "a process ended by itself"
        pause.wait(0.2)
    crew.leave()


def lines(journal: Path) -> list[list[str]]:
    return [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []


def ended_runs(journal: Path) -> set[str]:
    return {words[2] for words in lines(journal) if words[0] == "end"}


def assert_never_two_at_once(journal: Path) -> None:
    """Whoever ended on a thread was the last who had begun on it."""
    last: dict[str, list[str]] = {}
    for words in lines(journal):
        if words[0] == "start":
            last[words[1]] = words[1:]
        else:
            assert last[words[1]] == words[1:], f"{words} ended after {last[words[1]]} had begun"


def assert_in_order(journal: Path) -> None:
    """On each thread runs began for the first time in the order in which they were submitted."""
    first: dict[str, list[str]] = defaultdict(list)
    for words in lines(journal):
        if words[0] == "start" and words[2] not in first[words[1]]:
            first[words[1]].append(words[2])
    for thread, runs in first.items():
        assert runs == sorted(runs), thread


async def assert_history(stores: RunStores) -> None:
    """Every run is done, its dispatch acked, its answer on its thread once."""
    answers: Counter[str] = Counter()
    for thread in range(THREADS):
        messages = await stores.threads.load_messages(f"thread-{thread}") or ()
        answers.update(message.text() for message in messages if message.role == "assistant")
        asked = [message.id for message in messages if message.role == "user"]
        assert asked == [f"m{number:06d}" for number in range(thread, RUNS, THREADS)]
    assert answers == Counter(f"did m{number:06d}" for number in range(RUNS))
    for number in range(RUNS):
        run = await stores.threads.load_run(f"run-{number:06d}")
        assert run is not None
        assert run.status is RunStatus.DONE, run
        row = await stores.dispatches.load_dispatch(f"dispatch-{number:06d}")
        assert row is not None
        assert row.status is RunDispatchStatus.ACKED, row


def test_a_process_killed_again_and_again_loses_nothing_on_sqlite(tmp_path: Path, crew_of) -> None:
    refuse_missing("sqlite")
    path = tmp_path / "runs.db"
    crew = crew_of(str(path), 1)
    kill_for_a_while(crew)
    wait_until_done(crew)
    assert_never_two_at_once(crew.journal)
    assert_in_order(crew.journal)
    store = SqliteStore.open(path, purpose="check")
    try:
        asyncio.run(assert_history(store.runs))
    finally:
        store.close()
    print(f"{crew.kills} kills, {RUNS} runs, {len(lines(crew.journal))} lines in the journal")


def test_workers_and_the_database_killed_again_and_again_lose_nothing_on_postgres(
    tmp_path: Path, crew_of
) -> None:
    refuse_missing("postgres")
    from postroom.stores.postgres import PostgresStore

    with PostgresServer() as server:
        server.start()
        crew = crew_of(server.dsn, 4)

        def now_and_then(round_number: int) -> None:
            if round_number % 7 == 3:
                server.kill()
                server.start()

        kill_for_a_while(crew, now_and_then)
        wait_until_done(crew)
        assert_never_two_at_once(crew.journal)
        assert_in_order(crew.journal)

        async def check() -> None:
            kept = await asyncio.to_thread(PostgresStore.open, server.dsn, schema="chaos")
            try:
                await assert_history(kept.runs)
            finally:
                await asyncio.to_thread(kept.close)

        asyncio.run(check())
    print(f"{crew.kills} kills, {RUNS} runs, {len(lines(crew.journal))} lines in the journal")
