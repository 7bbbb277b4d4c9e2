"""The one writing thread after faults: no caller gets a false result, and it continues."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from conformance.promises.given import Office, an_office, put_message
from log_lines import capture_logs
from machine import PATIENCE
from postroom.contracts.errors import (
    StateError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UnknownAgent,
)
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.store import Transaction
from postroom.testing import ManualClock

T = TypeVar("T")
Change = Callable[[MailWrites], object]

NO_LIMIT = 1_073_741_823
LARGE = bytes(250_000)
"""More than a nearly full disk takes. For the statement that stores them, SQLite keeps no separate journal, so it undoes the
whole transaction; for a message, whose triggers need one, only the statement.
"""


class Gate:
    """A change during which the writer waits, so that changes submitted during it become one group."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, tx: object) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE)


async def outcome(work: Coroutine[Any, Any, T]) -> T | BaseException:
    try:
        return await work
    except (StoreError, StateError, ValueError) as error:
        return error


async def as_one_group(store: SqliteStore, *changes: Coroutine[Any, Any, object]) -> list[object]:
    """Commit the changes together, and return the result of each caller."""
    gate = Gate()
    before = store.grouping
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(store.write(gate))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        handed_in = [tasks.create_task(outcome(change)) for change in changes]
        await asyncio.sleep(0)
        gate.opened.set()
    assert store.grouping[0] - before[0] <= 2
    return [task.result() for task in handed_in]


async def on_the_writer(store: SqliteStore, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run something on the writer's own connection."""
    return await store.store.engine.write(lambda sql: work(sql.connection))


async def let_it_grow_by(store: SqliteStore, pages: int) -> None:
    """Make SQLite itself report a full disk once the file has grown by this many pages."""

    def limit(connection: sqlite3.Connection) -> None:
        present = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {min(present + pages, NO_LIMIT)}").fetchall()

    await on_the_writer(store, limit)


async def subjects(store: MailStore, here: Office) -> list[str]:
    found = await store.read(lambda tx: tx.project_messages(here.project.id, limit=1_000))
    return [message.subject for message in found]


def sending(here: Office, subject: str, *, body: str = "plum") -> Callable[[MailWrites], str]:
    def change(tx: MailWrites) -> str:
        put_message(tx, here.ada, [here.ben], subject=subject, body=body)
        return subject

    return change


def noted(ran: list[str], here: Office, subject: str) -> Callable[[MailWrites], str]:
    """Return a change that sends a message, and adds its subject to `ran` at each run."""
    send = sending(here, subject)

    def change(tx: MailWrites) -> str:
        ran.append(subject)
        return send(tx)

    return change


def failing(here: Office, subject: str) -> Change:
    def change(tx: MailWrites) -> None:
        put_message(tx, here.ada, [here.ben], subject=subject)
        raise ValueError(subject)

    return change


async def test_a_change_that_raises_leaves_the_rest_of_its_group(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    learned = await as_one_group(
        sqlite_store,
        sqlite_store.write(sending(here, "one")),
        sqlite_store.write(failing(here, "two")),
        sqlite_store.write(lambda tx: tx.put_contact(here.ada.id, 99, status="pending", reason="", now=1)),
        sqlite_store.write(sending(here, "three")),
    )
    assert learned[0] == "one"
    assert isinstance(learned[1], ValueError)
    assert isinstance(learned[2], StoreError)
    assert learned[3] == "three"
    assert await subjects(sqlite_store, here) == ["one", "three"]
    events = await sqlite_store.read(lambda tx: tx.inbox_events(here.ben.id, after=0, limit=9))
    assert [entry.seq for entry in events] == [1, 2]


async def test_a_group_of_changes_that_all_raise_writes_nothing(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    learned = await as_one_group(sqlite_store, *(sqlite_store.write(failing(here, name)) for name in "abc"))
    assert [str(error) for error in learned] == ["a", "b", "c"]
    assert await subjects(sqlite_store, here) == []


async def test_changes_handed_in_together_share_a_commit(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    groups, changes = sqlite_store.grouping
    names = [str(number) for number in range(60)]
    learned = await as_one_group(sqlite_store, *(sqlite_store.write(sending(here, name)) for name in names))
    assert learned == names
    assert (sqlite_store.grouping[0] - groups, sqlite_store.grouping[1] - changes) == (2, 61)
    assert await subjects(sqlite_store, here) == names


async def test_a_full_disk_is_told_to_every_caller_of_the_group_it_undid(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    await sqlite_store.write(sending(here, "before"))
    await let_it_grow_by(sqlite_store, 6)
    learned = await as_one_group(
        sqlite_store,
        sqlite_store.write(sending(here, "small")),
        sqlite_store.write(failing(here, "raising")),
        sqlite_store.write(lambda tx: tx.insert_blob("large", LARGE)),
        sqlite_store.write(sending(here, "after")),
    )
    assert [type(error) for error in learned] == [StoreFull, ValueError, StoreFull, StoreFull]
    assert len({id(error) for error in learned}) == len(learned)
    assert all(error.retryable and error.remedy for error in learned if isinstance(error, StoreFull))
    assert await subjects(sqlite_store, here) == ["before"]
    await let_it_grow_by(sqlite_store, NO_LIMIT)
    await sqlite_store.write(sending(here, "later", body="plum " * 50_000))
    assert await subjects(sqlite_store, here) == ["before", "later"]
    assert await sqlite_store.check() == []


async def test_a_full_disk_that_undid_one_change_is_told_to_its_caller_alone(
    sqlite_store: SqliteStore,
) -> None:
    here = await an_office(sqlite_store)
    await let_it_grow_by(sqlite_store, 6)
    learned = await as_one_group(
        sqlite_store,
        sqlite_store.write(sending(here, "small")),
        sqlite_store.write(sending(here, "large", body="plum " * 50_000)),
        sqlite_store.write(sending(here, "after")),
    )
    assert [type(error) for error in learned] == [str, StoreFull, str]
    assert await subjects(sqlite_store, here) == ["small", "after"]


async def test_a_full_disk_is_told_to_a_single_caller(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    await let_it_grow_by(sqlite_store, 6)
    changes = sending(here, "large", body="plum " * 50_000), lambda tx: tx.insert_blob("large", LARGE)
    with capture_logs() as lines:
        for change in changes:
            with pytest.raises(StoreFull):
                await sqlite_store.write(change)
    assert [line["event"] for line in lines] == ["store.full"], "a disk that stays full is logged once"
    await let_it_grow_by(sqlite_store, NO_LIMIT)
    assert await subjects(sqlite_store, here) == []
    await sqlite_store.write(sending(here, "later"))
    assert await subjects(sqlite_store, here) == ["later"]


async def test_a_change_that_hides_the_end_of_its_transaction_is_not_acknowledged(
    sqlite_store: SqliteStore,
) -> None:
    here = await an_office(sqlite_store)
    await let_it_grow_by(sqlite_store, 6)

    def hide(tx: MailWrites) -> str:
        try:
            tx.insert_blob("large", LARGE)
        except sqlite3.Error:
            return "all is well"
        raise AssertionError("the disk is not full")

    with pytest.raises(StoreUnavailable):
        await sqlite_store.write(hide)
    learned = await as_one_group(
        sqlite_store, sqlite_store.write(sending(here, "one")), sqlite_store.write(hide)
    )
    assert [type(error) for error in learned] == [StoreUnavailable, StoreUnavailable]
    assert await subjects(sqlite_store, here) == []


async def test_a_commit_that_fails_is_told_to_every_caller(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)

    def break_at_commit(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA defer_foreign_keys = ON")
        connection.execute("INSERT INTO project_aliases (human_key, project_id) VALUES ('x', 99)")

    learned = await as_one_group(
        sqlite_store,
        sqlite_store.write(sending(here, "one")),
        on_the_writer(sqlite_store, break_at_commit),
        sqlite_store.write(sending(here, "two")),
    )
    assert [type(error) for error in learned] == [StoreError, StoreError, StoreError]
    assert await subjects(sqlite_store, here) == []
    with pytest.raises(StoreError):
        await on_the_writer(sqlite_store, break_at_commit)
    await sqlite_store.write(sending(here, "three"))
    assert await subjects(sqlite_store, here) == ["three"]


async def test_a_database_that_became_read_only_refuses_typed(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    sqlite_store.store.engine.writer._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreReadOnly):
        await sqlite_store.write(sending(here, "one"))
    with pytest.raises(StoreReadOnly):
        await sqlite_store.probe()
    sqlite_store.store.engine.writer._connection.execute("PRAGMA query_only = OFF")
    await sqlite_store.write(sending(here, "two"))
    assert await subjects(sqlite_store, here) == ["two"]


@contextmanager
def locked_by_another(path: Path) -> Iterator[None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


async def test_a_lock_held_for_too_long_makes_the_store_unavailable(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    patience = timedelta(milliseconds=50)
    sqlite_store.store.engine.writer._connection.execute(
        f"PRAGMA busy_timeout = {patience // timedelta(milliseconds=1)}"
    )
    with locked_by_another(sqlite_store.path):
        learned = await as_one_group_while_locked(sqlite_store, here)
        assert await subjects(sqlite_store, here) == []
    assert [type(error) for error in learned] == [StoreUnavailable, StoreUnavailable]
    assert all(error.retryable for error in learned if isinstance(error, StoreUnavailable))
    await sqlite_store.write(sending(here, "later"))
    assert await subjects(sqlite_store, here) == ["later"]


async def as_one_group_while_locked(store: SqliteStore, here: Office) -> list[object]:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        handed_in = [tasks.create_task(outcome(store.write(sending(here, name)))) for name in "ab"]
    return [task.result() for task in handed_in]


async def test_a_cancelled_caller_harms_neither_its_group_nor_the_writer(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    gate = Gate()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(sqlite_store.write(gate))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        one, two, three = (tasks.create_task(sqlite_store.write(sending(here, name))) for name in "abc")
        await asyncio.sleep(0)
        two.cancel()
        await asyncio.sleep(0)
        assert two.cancelled()
        gate.opened.set()
    assert (one.result(), three.result()) == ("a", "c")
    await sqlite_store.write(sending(here, "d"))
    assert await subjects(sqlite_store, here) == ["a", "b", "c", "d"]


async def test_a_reader_sees_nothing_of_an_unfinished_change(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    gate = Gate()

    def send_and_wait(tx: MailWrites) -> None:
        put_message(tx, here.ada, [here.ben], subject="waiting")
        gate(tx)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(sqlite_store.write(send_and_wait))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        seen = await subjects(sqlite_store, here)
        gate.opened.set()
    assert seen == []
    assert await subjects(sqlite_store, here) == ["waiting"]


def test_callers_on_two_event_loops_are_all_answered(sqlite_store: SqliteStore) -> None:
    here = asyncio.run(an_office(sqlite_store))
    answers: dict[str, list[str]] = {}

    async def send_many(name: str) -> None:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            sent = [
                tasks.create_task(sqlite_store.write(sending(here, f"{name}{number}")))
                for number in range(50)
            ]
        answers[name] = [task.result() for task in sent]

    threads = [threading.Thread(target=asyncio.run, args=(send_many(name),)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    expected = {name: [f"{name}{number}" for number in range(50)] for name in "ab"}
    assert answers == expected
    assert sorted(asyncio.run(subjects(sqlite_store, here))) == sorted(expected["a"] + expected["b"])


def test_a_loop_that_was_closed_before_the_answer_harms_nobody(sqlite_store: SqliteStore) -> None:
    here = asyncio.run(an_office(sqlite_store))
    gate = Gate()
    loop = asyncio.new_event_loop()
    abandoned = [loop.create_task(sqlite_store.write(work)) for work in (gate, sending(here, "abandoned"))]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    for task in abandoned:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is abandoned on purpose

    async def go_on() -> str:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(sqlite_store.write(sending(here, "kept")))
            await asyncio.sleep(0)
            gate.opened.set()
        return waiting.result()

    assert asyncio.run(go_on()) == "kept"
    assert asyncio.run(subjects(sqlite_store, here)) == ["abandoned", "kept"]


async def test_closing_finishes_what_was_handed_in(tmp_path: Path) -> None:
    path = tmp_path / "postroom.db"
    store = await asyncio.to_thread(SqliteStore.open, path)
    here = await an_office(store)
    gate = Gate()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(store.write(gate))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        handed_in = [tasks.create_task(store.write(sending(here, name))) for name in "abc"]
        await asyncio.sleep(0)
        closing = tasks.create_task(asyncio.to_thread(store.close))
        await asyncio.sleep(0)
        gate.opened.set()
        await closing
    assert [task.result() for task in handed_in] == ["a", "b", "c"]
    again = await asyncio.to_thread(SqliteStore.open, path)
    assert await subjects(again, here) == ["a", "b", "c"]
    await asyncio.to_thread(again.close)


async def test_a_closed_store_refuses_typed(sqlite_store: SqliteStore, tmp_path: Path) -> None:
    await asyncio.to_thread(sqlite_store.close)
    await asyncio.to_thread(sqlite_store.close)
    for work in (
        sqlite_store.write(lambda tx: None),
        sqlite_store.read(lambda tx: None),
        sqlite_store.settle(),
        sqlite_store.probe(),
        sqlite_store.check(),
        sqlite_store.back_up(tmp_path / "copy.db"),
    ):
        with pytest.raises(StoreUnavailable):
            await work
    assert not (tmp_path / "copy.db").exists()


async def test_a_raising_look_up_leaves_its_reader_usable(sqlite_store: SqliteStore) -> None:
    def fail(tx: object) -> None:
        raise UnknownAgent("nobody")

    for _ in range(10):
        with pytest.raises(UnknownAgent):
            await sqlite_store.read(fail)
    assert await sqlite_store.read(lambda tx: tx.projects(limit=1)) == []


@pytest.fixture
def durable(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    """A store as a server opens it."""
    store = SqliteStore.open(tmp_path / "durable.db", clock=clock)
    yield store
    store.close()


async def test_every_connection_is_durable_and_only_the_writer_folds_the_log(durable: SqliteStore) -> None:
    names = ("journal_mode", "synchronous", "foreign_keys", "wal_autocheckpoint", "query_only")

    def ask(connection: sqlite3.Connection) -> list[object]:
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    full = 2
    assert await on_the_writer(durable, ask) == ["wal", full, 1, 0, 0]
    assert await durable.store.engine.readers.submit(lambda tx: ask(tx.connection)) == ["wal", full, 1, 0, 1]
    with pytest.raises(StoreReadOnly):
        await durable.store.engine.readers.submit(lambda tx: tx.connection.execute("DELETE FROM projects"))


async def test_what_a_change_that_raised_had_looked_up_is_forgotten(sqlite_store: SqliteStore) -> None:
    runs, thread_id = sqlite_store.runs.store, "t"

    def made_and_refused(tx: Transaction) -> None:
        tx.runs.threads.made(thread_id)
        assert tx.runs.threads.load(thread_id) is not None
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await runs.write(made_and_refused)
    assert await runs.write(lambda tx: tx.runs.threads.load(thread_id)) is None


async def test_changes_of_a_group_are_run_once_and_again_where_one_raises(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    ran: list[str] = []
    noting = partial(noted, ran, here)

    await as_one_group(sqlite_store, *(sqlite_store.write(noting(name)) for name in "ab"))
    assert ran == ["a", "b"]
    learned = await as_one_group(
        sqlite_store,
        sqlite_store.write(noting("c")),
        sqlite_store.write(failing(here, "d")),
        sqlite_store.write(noting("e")),
    )
    assert (ran, str(learned[1])) == (["a", "b", "c", "c", "e"], "d")
    assert await subjects(sqlite_store, here) == ["a", "b", "c", "e"]


async def test_a_change_that_is_refused_before_it_has_written_makes_no_other_run_again(
    sqlite_store: SqliteStore,
) -> None:
    here = await an_office(sqlite_store)
    ran: list[str] = []
    noting = partial(noted, ran, here)

    def refused(tx: MailWrites) -> None:
        assert tx.agent(here.project.id, "Nobody") is None
        raise ValueError("no agent 'Nobody'")

    learned = await as_one_group(
        sqlite_store,
        sqlite_store.write(noting("a")),
        sqlite_store.write(refused),
        sqlite_store.write(noting("b")),
        sqlite_store.write(refused),
    )
    assert (ran, learned[0], learned[2]) == (["a", "b"], "a", "b")
    assert [type(learned[1]), type(learned[3])] == [ValueError, ValueError]
    assert await subjects(sqlite_store, here) == ["a", "b"]
