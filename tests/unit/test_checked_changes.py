"""The engine that finds changes which break the rules for changes."""

import gc
import itertools
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

import pytest

from postroom.contracts.errors import StateError
from postroom.stores.sql_transaction import SqlTransaction
from postroom.stores.sqlite.engine import SqliteEngine
from postroom.stores.store import SqlStore, Transaction
from postroom.testing import ManualClock
from postroom.testing.changes import ChangeBreaksRules, CheckingEngine
from table_rows import each_row

ROW = {"kind": "run", "id": "r", "reason": "", "at": 1}


@pytest.fixture
def engine(clock: ManualClock) -> CheckingEngine:
    return CheckingEngine(SqliteEngine.in_memory(clock))


async def test_a_change_that_keeps_the_rules_is_run_twice_and_written_once(engine: CheckingEngine) -> None:
    runs: list[int] = []

    def change(sql: SqlTransaction) -> object:
        runs.append(1)
        return sql.one("store.set_aside", ROW)

    assert await engine.write(change) == ("run",)
    assert len(runs) == 2
    assert await engine.write(lambda sql: sql.one("store.set_aside", ROW)) is None


async def test_ids_of_a_change_are_the_same_when_it_is_run_again_and_no_others_are(
    engine: CheckingEngine,
) -> None:
    store, made = SqlStore(engine), list[tuple[str, str]]()

    def change(tx: Transaction) -> None:
        made.append((tx.new_id(), tx.new_id()))

    await store.write(change)
    await store.write(change)
    assert (made[0], made[2]) == (made[1], made[3])
    assert len({one for pair in made for one in pair}) == 4


async def test_a_change_that_raises_is_judged_by_what_it_raises(engine: CheckingEngine) -> None:
    def refuse(sql: SqlTransaction) -> None:
        raise StateError("not now")

    with pytest.raises(StateError):
        await engine.write(refuse)


async def test_a_change_that_gives_another_result_when_it_is_run_again_is_refused(
    engine: CheckingEngine,
) -> None:
    numbers = itertools.count()
    with pytest.raises(ChangeBreaksRules, match="another result"):
        await engine.write(lambda sql: next(numbers))


LOCK = threading.Lock()


def connecting() -> None:
    with socket.socket() as its:
        its.connect_ex(("127.0.0.1", 1))


MISTAKES: dict[str, Callable[[], object]] = {
    "urandom": lambda: token_hex(16),
    "open": lambda: Path(__file__).read_text(),
    "stat": lambda: Path(__file__).stat(),
    "sleep": lambda: time.sleep(0),
    "acquire": lambda: LOCK.acquire() and LOCK.release(),
    "sqlite3": lambda: sqlite3.connect(":memory:").close(),
    "start_.*thread": lambda: threading.Thread(target=int).start(),
    "connect": connecting,
}


@each_row("mistake", MISTAKES)
async def test_a_change_that_does_more_than_ask_and_write_is_refused(
    engine: CheckingEngine, mistake: str
) -> None:
    with pytest.raises(ChangeBreaksRules, match=mistake):
        await engine.write(lambda sql: MISTAKES[mistake]() and None)
    with pytest.raises(ChangeBreaksRules, match=mistake):
        await engine.read(lambda sql: MISTAKES[mistake]() and None)


async def test_what_is_freed_during_a_change_is_not_the_changes_doing(engine: CheckingEngine) -> None:
    class Locked:
        def __init__(self) -> None:
            self.itself, self.lock = self, threading.Lock()

        def __del__(self) -> None:
            with self.lock:
                freed.append(True)

    freed: list[bool] = []

    def change(sql: SqlTransaction) -> object:
        Locked()
        gc.collect()
        return sql.one("store.set_aside", ROW)

    assert await engine.write(change) == ("run",)
    assert freed == [True, True]


async def test_a_change_that_uses_a_transaction_that_has_ended_is_refused(engine: CheckingEngine) -> None:
    kept: list[SqlTransaction] = []
    await engine.write(kept.append)
    with pytest.raises(ChangeBreaksRules, match="ended"):
        await engine.write(lambda sql: kept[0].one("store.set_aside", ROW))


async def test_a_change_that_takes_long_is_refused(
    engine: CheckingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.testing.changes.MAX_SECONDS", 0)
    with pytest.raises(ChangeBreaksRules, match="more than"):
        await engine.write(lambda sql: sum(range(1_000)))
