"""A process is killed repeatedly; every run ends once, in order, and none is lost.

`POSTROOM_CHAOS_SECONDS` is for how long it is killed (5 by default), `POSTROOM_CHAOS_RUNS` how many runs there are
at least. The full test is 120 seconds with 5,000 runs. Workers on PostgreSQL are killed in `tests/faults/test_storm.py`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

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


def started(database: Path, journal: Path) -> subprocess.Popen[bytes]:
    """Start the process; it begins with SIGTERM held back, until it can leave in good order."""
    words = [str(database), str(journal), str(THREADS), str(RUNS)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with journal.with_suffix(".err").open("ab") as errors:
            return subprocess.Popen([sys.executable, str(PROGRAM), *words], stdout=errors, stderr=errors)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def lines(journal: Path) -> list[list[str]]:
    return [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []


def assert_in_order_and_one_at_a_time(journal: Path) -> None:
    """The last to end on a thread was the last to begin on it; runs began in the order of submission."""
    last: dict[str, list[str]] = {}
    first: dict[str, list[str]] = defaultdict(list)
    for word, *words in lines(journal):
        thread, run = words[:2]
        if word == "end":
            assert last[thread] == words, f"{words} ended after {last[thread]} had begun"
            continue
        last[thread] = words
        if run not in first[thread]:
            first[thread].append(run)
    assert {thread: runs for thread, runs in first.items() if runs != sorted(runs)} == {}


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
        row = await stores.dispatches.load_dispatch(f"dispatch-{number:06d}")
        assert run is not None
        assert row is not None
        assert (run.status, row.status) == (RunStatus.DONE, RunDispatchStatus.ACKED), (run, row)


def test_a_process_killed_again_and_again_loses_nothing_on_sqlite(tmp_path: Path) -> None:
    refuse_missing("sqlite")
    database, journal, pause = tmp_path / "runs.db", tmp_path / "journal", threading.Event()
    process = started(database, journal)
    try:
        kill_until, over = time.monotonic() + SECONDS, time.monotonic() + SECONDS * 3 + 180
        while time.monotonic() < kill_until:
            pause.wait(1)
            process.kill()
            process.wait()
            process = started(database, journal)
        while (ended := len({words[2] for words in lines(journal) if words[0] == "end"})) < RUNS:
            assert time.monotonic() < over, f"{ended} of {RUNS} runs ended"
            assert process.poll() is None, "it ended by itself"
            pause.wait(0.2)
        process.terminate()  # it writes what the last runs came to, and ends
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    assert_in_order_and_one_at_a_time(journal)
    store = SqliteStore.open(database, purpose="check")
    try:
        asyncio.run(assert_history(store.runs))
    finally:
        store.close()
