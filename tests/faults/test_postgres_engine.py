"""The engine on PostgreSQL under faults: cut connections, sessions that wait for each other, a server that ends.

A proxy stands between engine and server where a connection has to break at a chosen moment.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from zlib import crc32

import pytest
import pytest_asyncio

from faults.cutting_proxy import CuttingProxy, a_proxy
from machine import PATIENCE
from postgres_server import PostgresServer, is_given
from postroom.contracts.errors import (
    CommitUnknown,
    ConfigError,
    InternalError,
    InvalidRecord,
    PostroomError,
    SchemaTooNew,
    StateError,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    WrongStore,
)
from postroom.stores.migrations import Migration, shipped_migrations
from postroom.stores.postgres.connection import SESSION, Address, Connection, encoded
from postroom.stores.postgres.engine import PostgresEngine
from postroom.stores.postgres.schema import migrate
from postroom.stores.postgres.sql_transaction import PostgresTransaction, lock_number
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sql_transaction import SqlTransaction, Statement
from postroom.stores.store import MIN_SPACE, SqlStore
from postroom.testing import ManualClock
from store_kinds import POOLED, pooled, refuse_missing

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("postgres_dsn")]

NOTES = "CREATE TABLE jottings (name text PRIMARY KEY, words text NOT NULL CHECK (words <> 'bad'))"
Change = Callable[[SqlTransaction], object]


def on(sql: SqlTransaction) -> Connection:
    assert isinstance(sql, PostgresTransaction)
    return sql.connection


def own(text: str) -> Statement:
    """A statement that only these tests have."""
    return Statement(name=f"tests.{crc32(text.encode())}", text=text, parameters=(), lists=frozenset())


def rows(sql: SqlTransaction, text: str, *values: object) -> list[object]:
    assert isinstance(sql, PostgresTransaction)
    return [row[0] for row in sql.rows(own(text), values)]


def noting(name: str, words: str = "good") -> Callable[[SqlTransaction], str]:
    """A change that writes and does not wait for the answer."""

    def change(sql: SqlTransaction) -> str:
        assert isinstance(sql, PostgresTransaction)
        sql.send(own("INSERT INTO jottings VALUES ($1, $2)"), [encoded(name), encoded(words)])
        return name

    return change


def looked(name: str) -> Callable[[SqlTransaction], str]:
    """A change that looks before it writes."""

    def change(sql: SqlTransaction) -> str:
        rows(sql, "SELECT count(*) FROM jottings")
        return noting(name)(sql)

    return change


async def notes(store: SqlStore) -> list[object]:
    return await store.engine.read(lambda sql: rows(sql, "SELECT name FROM jottings ORDER BY name"))


def engine_of(store: SqlStore) -> PostgresEngine:
    assert isinstance(store.engine, PostgresEngine)
    return store.engine


class Gate:
    """A change during which the writer waits, so that changes submitted during it become one group."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, sql: SqlTransaction) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE)


async def outcome(store: SqlStore, change: Change, key: str = "") -> object:
    try:
        return await store.engine.write(change, key=key)
    except (PostroomError, ValueError) as error:
        return error


async def as_one_group(store: SqlStore, *changes: Change, key: str = "key{:03}") -> list[object]:
    """Submit the changes to one writer as a group, and return the result of each caller.

    Each has a separate key, in the order of the changes, unless a key is given.
    """
    gate, keys = Gate(), map(key.format, range(200))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(outcome(store, gate))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        handed_in = [
            tasks.create_task(outcome(store, change, key)) for key, change in zip(keys, changes, strict=False)
        ]
        await asyncio.sleep(0)
        gate.opened.set()
    return [task.result() for task in handed_in]


@asynccontextmanager
async def opened(dsn: str, schema: str, clock: ManualClock | None, **more: Any) -> AsyncIterator[SqlStore]:
    store = (
        await asyncio.to_thread(PostgresStore.open, dsn, schema=schema, clock=clock, readers=2, **more)
    ).store
    try:
        await store.engine.write(lambda sql: rows(sql, NOTES))
        yield store
    finally:
        await asyncio.to_thread(store.close)


@pytest_asyncio.fixture
async def store(
    postgres_dsn: str, a_schema: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SqlStore]:
    monkeypatch.setitem(SESSION, "lock_timeout", "1500ms")
    async with opened(postgres_dsn, a_schema, clock) as opened_store:
        yield opened_store


@pytest_asyncio.fixture
async def proxied(
    postgres_dsn: str, a_schema: str, clock: ManualClock
) -> AsyncIterator[tuple[SqlStore, CuttingProxy]]:
    async with a_proxy(postgres_dsn) as (proxy, dsn), opened(dsn, a_schema, clock) as opened_store:
        yield opened_store, proxy


@pytest.fixture
def other(postgres_dsn: str, a_schema: str, store: SqlStore) -> Iterator[Connection]:
    """Another session."""
    connection = Connection(Address(dsn=postgres_dsn, schema=a_schema))
    yield connection
    connection.close()


def asked(connection: Connection, text: str, *values: object) -> list[object]:
    answer = connection.send(text, values)
    connection.wait()
    return [row[0] for row in answer.rows]


async def until_one_waits(other: Connection) -> None:
    """Return when a session waits for a lock; the server tells nobody."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(asked, other, "SELECT 1 FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0)


# What PostgreSQL refuses within a group


async def test_a_statement_that_is_refused_within_a_group_redoes_the_others(store: SqlStore) -> None:
    learned = await as_one_group(
        store, noting("a"), noting("b", "bad"), looked("c"), noting("a"), noting("d")
    )
    assert learned[0] == "a"
    assert isinstance(learned[1], StoreError)
    assert learned[2] == "c"
    assert isinstance(learned[3], StoreError)
    assert learned[3].value == "jottings_pkey"
    assert learned[4] == "d"
    assert await notes(store) == ["a", "c", "d"]


async def test_a_change_that_raises_after_it_wrote_is_undone_alone(store: SqlStore) -> None:
    def failing(sql: SqlTransaction) -> None:
        noting("lost")(sql)
        raise StateError("not now")

    learned = await as_one_group(store, noting("a"), failing, looked("b"))
    assert (learned[0], type(learned[1]), learned[2]) == ("a", StateError, "b")
    assert await notes(store) == ["a", "b"]


async def test_what_a_group_asks_together_is_dealt_out_as_each_asked_it(store: SqlStore) -> None:
    odd = ("plain", 'a "quote", {and} \\', "NULL", "", "ünïcödé", "\n")

    def looking(name: str) -> Change:
        def change(sql: SqlTransaction) -> object:
            sql.lock(name)
            named = sql.ask(
                ("threads.state", {"thread_id": name}),
                ("threads.runs_of_threads", {"thread_ids": (name, "other")}),
                (
                    "dispatches.against",
                    {"dispatch_id": name, "thread_id": name, "dedupe_key": None, "run_id": ""},
                ),
            )
            sql.run("threads.put_state", {"thread_id": name, "body": f"[{len(named)}]{name}"})
            return named[0]

        return change

    first = await as_one_group(store, *[looking(name) for name in odd])
    again = await as_one_group(store, *[looking(name) for name in odd])
    assert first == [[]] * len(odd)
    assert again == [[(f"[3]{name}",)] for name in odd]


def names_sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return where the name of each statement is noted that is sent from now on."""
    sent: list[str] = []
    send = Connection._send_prepared

    def noting_names(self: Connection, statement: Statement, *more: Any) -> Any:
        sent.append(statement.name)
        return send(self, statement, *more)

    monkeypatch.setattr(Connection, "_send_prepared", noting_names)
    return sent


async def test_what_a_group_writes_together_is_written_in_the_order_of_each_and_of_its_locks(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes of one row are not one statement, which would lose one of them."""

    def writing(name: str, *bodies: str) -> Change:
        def change(sql: SqlTransaction) -> None:
            sql.lock(name)
            run = {"run_id": name, "thread_id": name, "status": "created", "holds_others": 0}
            for at, body in enumerate(bodies):
                statement = "threads.add_run" if body == '"0"' else "threads.put_run"
                sql.run(statement, {**run, "created_at": 1, "updated_at": at + 1, "body": body})

        return change

    def bodies(sql: SqlTransaction) -> dict[str, str]:
        return {name: row[1] for name in "abcd" if (row := sql.one("threads.run", {"run_id": name}))}

    await as_one_group(store, *(writing(name, '"0"', '"-"') for name in "abc"))
    sent = names_sent(monkeypatch)
    changes = [
        writing("a", '"1"', '"2"'),
        writing("b", '"3"', '"4"'),
        writing("c", '"5"'),
        writing("a", '"6"'),
    ]
    assert await as_one_group(store, *changes) == [None] * 4
    assert await outcome(store, bodies) == {"a": '"6"', "b": '"4"', "c": '"5"'}
    assert sent.count("threads.put_run+") == 2
    assert sent.count("threads.put_run") == 1, "what comes behind another under its lock"


async def test_a_change_sees_what_was_written_before_it_under_the_same_lock(store: SqlStore) -> None:
    def adding(*locks: str, later: str = "") -> Change:
        def change(sql: SqlTransaction) -> list[tuple[str, int]]:
            sql.lock(*locks)
            numbers = [(name, number(sql, name)) for name in locks]
            if later:
                number(sql, later)  # nothing is to be decided on this
                sql.lock(later)
                numbers.append((later, number(sql, later)))
            for name, found in numbers:
                sql.run("threads.put_state", {"thread_id": name, "body": str(found + 1)})
            return numbers

        return change

    def number(sql: SqlTransaction, name: str) -> int:
        found = sql.one("threads.state", {"thread_id": name})
        return int(found[0]) if found else 0

    learned = await as_one_group(
        store,
        adding("x"),
        adding("x", "y"),
        adding("y"),
        adding("z", later="y"),
        adding("y"),
        adding("x", "z"),
    )
    numbers = [one for numbers in learned for one in cast("list[tuple[str, int]]", numbers)]
    assert sorted(numbers) == [
        ("x", 0),
        ("x", 1),
        ("x", 2),
        *(("y", at) for at in range(4)),
        ("z", 0),
        ("z", 1),
    ]


async def test_what_is_held_up_waits_for_its_lock_also_when_its_group_is_redone_one_by_one(
    store: SqlStore, other: Connection
) -> None:
    def failing(sql: SqlTransaction) -> None:
        noting("lost")(sql)
        raise StateError("not now")

    def locking(sql: SqlTransaction) -> object:
        sql.lock("held")
        return looked("after")(sql)

    other.begin()
    asked(other, "SELECT pg_advisory_xact_lock($1)", lock_number("held"))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        group = tasks.create_task(as_one_group(store, noting("a"), locking, failing, noting("b")))
        await until_one_waits(other)
        other.undo()
    learned = group.result()
    assert (learned[0], learned[1], type(learned[2]), learned[3]) == ("a", "after", StateError, "b")
    assert await notes(store) == ["a", "after", "b"]


async def test_a_fault_of_our_own_in_the_writer_is_told_and_the_next_change_is_written(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ended, and the caller waited forever."""
    begin = Connection.begin

    def failing(self: Connection, how: str = "BEGIN") -> None:
        monkeypatch.setattr(Connection, "begin", begin)
        raise TypeError("a fault")

    monkeypatch.setattr(Connection, "begin", failing)
    async with asyncio.timeout(PATIENCE):
        assert isinstance(await outcome(store, noting("lost"), "one"), InternalError)
        assert await outcome(store, noting("kept"), "one") == "kept"
    assert await notes(store) == ["kept"]


async def test_a_number_that_is_taken_twice_is_another_each_time(store: SqlStore) -> None:
    def taking(sql: SqlTransaction) -> tuple[object, object]:
        return sql.all("mail.next_message"), sql.all("mail.next_message")

    learned = await as_one_group(store, taking, taking)
    numbers = [found[0][0] for pair in learned for found in cast("tuple[list[Any], list[Any]]", pair)]
    assert len(set(numbers)) == 4


async def test_a_single_change_that_raises_after_a_refused_write_leaves_a_usable_connection(
    store: SqlStore,
) -> None:
    def failing(sql: SqlTransaction) -> None:
        noting("b", "bad")(sql)
        raise StateError("not now")

    assert isinstance(await outcome(store, failing), StateError)
    assert await outcome(store, noting("c")) == "c"


async def test_a_change_that_hides_a_refusal_is_not_acknowledged(store: SqlStore) -> None:
    def hiding(sql: SqlTransaction) -> str:
        try:
            sql.one("store.set_aside", {"kind": None, "id": "x", "reason": "", "at": 0})
        except PostroomError:
            return "all is well"
        raise AssertionError

    assert isinstance(await outcome(store, hiding), StoreError)
    learned = await as_one_group(store, noting("a"), hiding)
    assert learned[0] == "a"
    assert isinstance(learned[1], StoreError)


async def test_a_value_that_no_database_holds_is_refused_before_it_is_sent(store: SqlStore) -> None:
    for text in ("a\0b", "\ud800"):
        row = {"kind": "run", "id": text, "reason": "", "at": 0}
        refused = await outcome(store, lambda sql, row=row: sql.run("store.set_aside", row))
        assert isinstance(refused, InvalidRecord)
    assert await outcome(store, noting("a")) == "a"


async def test_a_statement_that_was_refused_at_its_first_use_is_prepared_again(store: SqlStore) -> None:
    row = {"kind": "run", "id": "x", "reason": "", "at": 0}

    def behind_a_mistake(sql: SqlTransaction) -> None:
        on(sql).send("SELECT 1/0")
        sql.run("store.set_aside", row)

    assert isinstance(await outcome(store, behind_a_mistake), InvalidRecord)
    assert await outcome(store, lambda sql: sql.one("store.set_aside", row)) == ("run",)


async def test_a_look_cannot_write(store: SqlStore) -> None:
    with pytest.raises(StoreReadOnly):
        await store.engine.read(lambda sql: rows(sql, "DELETE FROM jottings"))
    assert await notes(store) == []


async def test_a_look_sees_one_view_whatever_is_written_meanwhile(store: SqlStore) -> None:
    between, written = threading.Event(), threading.Event()

    def twice(sql: SqlTransaction) -> list[object]:
        first = rows(sql, "SELECT count(*) FROM jottings")
        between.set()
        assert written.wait(PATIENCE)
        return first + rows(sql, "SELECT count(*) FROM jottings")

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(store.engine.read(twice))
        assert await asyncio.to_thread(between.wait, PATIENCE)
        await store.engine.write(noting("a"))
        written.set()
    assert looking.result() == [0, 0]


@pytest.fixture
def pooled_dsn(postgres_dsn: str) -> str:
    refuse_missing(POOLED)
    return pooled(postgres_dsn)


async def test_two_processes_behind_a_pooler_hear_each_other_by_the_direct_address(
    postgres_dsn: str, pooled_dsn: str, a_schema: str, clock: ManualClock
) -> None:
    async with opened(pooled_dsn, a_schema, clock, direct_dsn=postgres_dsn) as one:
        second = await asyncio.to_thread(
            PostgresStore.open, pooled_dsn, schema=a_schema, clock=clock, direct_dsn=postgres_dsn
        )
        try:
            for engine in (engine_of(one), engine_of(second.store)):
                assert await asyncio.to_thread(engine.notifications.is_listening.wait, PATIENCE)
            with second.store.changes.listen("plum") as told:
                for _ in range(2):  # the first may have been told by that it began to hear
                    engine_of(one).share(["plum"])
                    assert await told.wait(timedelta(seconds=PATIENCE))
        finally:
            await asyncio.to_thread(second.close)


def test_a_pooler_of_transactions_is_refused_where_the_direct_address_is_not_told(
    postgres_dsn: str, pooled_dsn: str, a_schema: str
) -> None:
    with pytest.raises(ConfigError, match="another PostgreSQL session") as refused:
        PostgresStore.open(pooled_dsn, schema=a_schema)
    assert "database_direct_url" in refused.value.remedy
    with pytest.raises(WrongStore):  # nothing was made
        PostgresStore.open(postgres_dsn, schema=a_schema, may_begin=False)


# Connections that are lost


async def test_a_backend_that_is_ended_in_the_middle_of_a_group_writes_each_change_once(
    store: SqlStore, other: Connection
) -> None:
    ended: list[int] = []

    def ending(sql: SqlTransaction) -> str:
        if not ended:
            ended.append(on(sql).pid)
            asked(other, "SELECT pg_terminate_backend($1::int, 5000)", on(sql).pid)
        return looked("b")(sql)

    learned = await as_one_group(store, noting("a"), ending, noting("c"))
    assert learned == ["a", "b", "c"]
    assert await notes(store) == ["a", "b", "c"]


async def test_a_connection_that_was_ended_while_nobody_wrote_is_replaced(
    store: SqlStore, other: Connection
) -> None:
    pid = await store.engine.write(lambda sql: on(sql).pid)
    await asyncio.to_thread(asked, other, "SELECT pg_terminate_backend($1::int, 5000)", pid)
    assert await outcome(store, noting("a")) == "a"
    assert await notes(store) == ["a"]


@pytest.mark.parametrize("heard", [True, False])
async def test_a_commit_whose_answer_is_lost_is_unknown(
    proxied: tuple[SqlStore, CuttingProxy], heard: bool
) -> None:
    store, proxy = proxied
    if heard:
        proxy.cut_after = b"COMMIT"
    else:
        proxy.cut_before = b"COMMIT"
    assert isinstance(await outcome(store, looked("a")), CommitUnknown)
    assert proxy.cuts == 1
    async with asyncio.timeout(PATIENCE):
        while heard and await notes(store) != ["a"]:
            await asyncio.sleep(0)
    assert await notes(store) == (["a"] if heard else [])
    assert await outcome(store, noting("b")) == "b"


async def test_a_connection_that_is_lost_before_the_commit_was_sent_is_replaced_and_the_change_done_again(
    proxied: tuple[SqlStore, CuttingProxy],
) -> None:
    store, proxy = proxied
    proxy.cut_after = b"needle"
    tries: list[int] = []

    def change(sql: SqlTransaction) -> str:
        tries.append(1)
        rows(sql, "SELECT 'needle'")
        return noting("a")(sql)

    assert await outcome(store, change) == "a"
    assert (len(tries), proxy.cuts, await notes(store)) == (2, 1, ["a"])


async def test_a_look_whose_answer_is_lost_is_taken_again(proxied: tuple[SqlStore, CuttingProxy]) -> None:
    store, proxy = proxied
    proxy.cut_after = b"needle"
    assert await store.engine.read(lambda sql: rows(sql, "SELECT 'needle'")) == ["needle"]
    assert proxy.cuts == 1


async def test_a_server_that_is_out_of_reach_for_a_while_is_used_again(
    proxied: tuple[SqlStore, CuttingProxy],
) -> None:
    store, proxy = proxied
    proxy.refuse = True
    proxy.cut_all()
    with pytest.raises(StoreUnavailable):
        await notes(store)
    assert isinstance(await outcome(store, looked("a")), StoreUnavailable)
    proxy.refuse = False
    assert await notes(store) == []
    assert await outcome(store, looked("b")) == "b"


async def test_a_server_that_says_nothing_any_more_is_not_waited_for_for_ever(
    postgres_dsn: str, a_schema: str
) -> None:
    async with a_proxy(postgres_dsn) as (proxy, dsn), asyncio.timeout(PATIENCE):
        moment = timedelta(milliseconds=300)
        address = Address(dsn=dsn, schema=a_schema)
        connection = await asyncio.to_thread(Connection, address)
        connection._within = moment.total_seconds()
        proxy.swallow = True
        with pytest.raises(Exception, match="no longer answers"):
            await asyncio.to_thread(asked, connection, "SELECT 1")
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(Connection, replace(address, connect_within=moment))
        connection.close()


async def test_closing_cuts_off_what_takes_too_long(
    postgres_dsn: str, a_schema: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.stores.postgres.writer._END_WITHIN", timedelta(milliseconds=50))
    async with opened(postgres_dsn, a_schema, clock) as store:
        hanging = asyncio.ensure_future(outcome(store, lambda sql: rows(sql, "SELECT pg_sleep(20)")))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE / 2):
            await asyncio.to_thread(store.close)
            assert isinstance(await hanging, StoreUnavailable)


async def test_a_lost_connection_for_hints_is_opened_again(store: SqlStore, other: Connection) -> None:
    hints = engine_of(store).notifications
    assert await asyncio.to_thread(hints.is_listening.wait, PATIENCE)
    with store.changes.listen("t") as news:
        while await news.wait(timedelta()):
            pass
        ending = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query LIKE '%pg_notify%' AND pid <> pg_backend_pid()"
        await asyncio.to_thread(asked, other, "SELECT pg_notify($1, 't')", hints.channel)
        assert await news.wait(timedelta(seconds=PATIENCE))
        await asyncio.to_thread(asked, other, "SELECT 1")
        while not await asyncio.to_thread(asked, other, ending):
            pass  # it is told by its last statement, which now and then is another
        assert await news.wait(timedelta(seconds=PATIENCE))  # something may have been missed
        assert await asyncio.to_thread(hints.is_listening.wait, PATIENCE)


async def test_a_process_that_is_alone_sends_no_hints_and_one_that_begins_misses_none(
    store: SqlStore, other: Connection, postgres_dsn: str, a_schema: str, clock: ManualClock
) -> None:
    hints = engine_of(store).notifications
    assert await asyncio.to_thread(hints.is_alone.wait, PATIENCE)
    await asyncio.to_thread(other.listen, hints.channel)
    engine_of(store).share(["unsent"])
    heard: list[str] = []
    await asyncio.to_thread(asked, other, "SELECT pg_notify($1, 'plum')", hints.channel)
    while "*" not in heard:  # it hears that it is not alone, and from now on it sends
        await asyncio.to_thread(asked, other, "SELECT 1")
        heard += [word for word, _ in other.heard()]
    assert set(heard) == {"plum", "*"}
    second = await asyncio.to_thread(PostgresStore.open, postgres_dsn, schema=a_schema, clock=clock)
    try:
        with second.store.changes.listen("plum") as told:
            for _ in range(5):  # the first may come from the beginning itself
                engine_of(store).share(["plum"])
                assert await told.wait(timedelta(seconds=PATIENCE))
        assert not hints.is_alone.is_set()
        assert not engine_of(second.store).notifications.is_alone.is_set()
    finally:
        await asyncio.to_thread(second.close)


# Transactions that wait for each other


async def test_who_gave_way_in_a_deadlock_simply_does_it_again(
    store: SqlStore, other: Connection, postgres_dsn: str, a_schema: str
) -> None:
    tries: list[int] = []
    holding, other_waits = threading.Event(), threading.Event()

    def both(sql: SqlTransaction) -> int:
        tries.append(1)
        sql.lock("first")
        sql.wait_for_locks()
        holding.set()
        assert other_waits.wait(PATIENCE)
        sql.lock("second")
        sql.wait_for_locks()
        return len(tries)

    asked(other, "SELECT set_config('deadlock_timeout', '1h', false), set_config('lock_timeout', '0', false)")
    other.begin()
    asked(other, "SELECT pg_advisory_xact_lock($1)", lock_number("second"))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        done = tasks.create_task(store.engine.write(both))
        assert await asyncio.to_thread(holding.wait, PATIENCE)
        waiting = tasks.create_task(
            asyncio.to_thread(asked, other, "SELECT pg_advisory_xact_lock($1)", lock_number("first"))
        )
        with connected(postgres_dsn, a_schema) as third:
            await until_one_waits(third)
        other_waits.set()
        await waiting
        other.undo()
    assert done.result() == 2


async def test_a_lock_that_is_held_for_too_long_is_told_to_its_change_alone(
    store: SqlStore, other: Connection
) -> None:
    def locking(name: str) -> Change:
        def change(sql: SqlTransaction) -> object:
            sql.lock(name)
            return looked(name)(sql)

        return change

    other.begin()
    asked(other, "SELECT pg_advisory_xact_lock($1)", lock_number("b"))
    learned = await as_one_group(store, locking("a"), locking("b"), locking("c"))
    assert learned[0] == "a"
    assert isinstance(learned[1], StoreUnavailable)
    assert learned[1].details == {"held_up": True}
    assert learned[2] == "c"
    other.undo()
    assert await outcome(store, locking("b")) == "b"


async def test_a_change_of_another_key_is_not_kept_by_one_that_waits(
    store: SqlStore, other: Connection
) -> None:
    def locking(sql: SqlTransaction) -> None:
        sql.lock("held")
        sql.wait_for_locks()

    other.begin()
    asked(other, "SELECT pg_advisory_xact_lock($1)", lock_number("held"))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(outcome(store, locking, "first"))
        await until_one_waits(other)
        assert await outcome(store, noting("free"), "elsewhere") == "free"
        assert not waiting.done()
        other.undo()


async def test_a_change_that_would_keep_its_group_waiting_comes_with_the_next(
    store: SqlStore, other: Connection
) -> None:
    runs: list[str] = []

    def locking(name: str) -> Change:
        def change(sql: SqlTransaction) -> object:
            runs.append(name)
            sql.lock(name)
            return looked(name)(sql)

        return change

    other.begin()
    asked(other, "SELECT pg_advisory_xact_lock($1)", lock_number("b"))
    gate = Gate()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(outcome(store, gate))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        changes = ("a", "key0"), ("b", "key1"), ("b2", "key1"), ("c", "key2")
        done = [tasks.create_task(outcome(store, locking(name), key)) for name, key in changes]
        await asyncio.sleep(0)
        gate.opened.set()
        assert [await done[0], await done[3]] == ["a", "c"]
        await until_one_waits(other)
        last = tasks.create_task(outcome(store, locking("b3"), "key1"))
        assert await outcome(store, locking("d"), "key0") == "d"
        assert not done[1].done()
        assert runs[:3] == ["a", "b", "c"]
        assert "b3" not in runs
        other.undo()
        assert [await done[1], await done[2], await last] == ["b", "b2", "b3"]
    ended = list(dict.fromkeys(reversed(runs)))[::-1]
    assert [name for name in ended if name.startswith("b")] == ["b", "b2", "b3"]
    assert await outcome(store, locking("b4"), "key1") == "b4"
    assert await notes(store) == ["a", "b", "b2", "b3", "b4", "c", "d"]


async def test_an_instant_is_read_after_the_locks_are_held(
    store: SqlStore, other: Connection, clock: ManualClock
) -> None:
    other.begin()
    asked(other, "SELECT pg_advisory_xact_lock($1)", lock_number("t"))

    def change(tx: object) -> int:
        tx.lock("t")  # type: ignore[attr-defined]
        return tx.now()  # type: ignore[attr-defined, no-any-return]

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        done = tasks.create_task(store.write(change))
        await until_one_waits(other)
        clock.advance(timedelta(seconds=7))
        other.undo()
    assert done.result() == clock.now()


# Servers


END_OTHERS = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"


async def test_a_database_that_was_read_only_is_written_again_without_a_restart(
    own_server: PostgresServer, clock: ManualClock
) -> None:
    read_only = "ALTER DATABASE postgres SET default_transaction_read_only = on"
    async with opened(own_server.dsn, "postroom", clock) as store, asyncio.timeout(PATIENCE):
        with connected(own_server.dsn, "postroom") as operator:
            await asyncio.to_thread(asked, operator, read_only)
            await asyncio.to_thread(asked, operator, END_OTHERS)
            assert isinstance(await outcome(store, looked("a"), "a"), StoreReadOnly)
            await asyncio.to_thread(asked, operator, read_only.replace("= on", "= off"))
            assert await outcome(store, looked("a"), "a") == "a"


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    if is_given():
        pytest.skip("the server of TEST_DATABASE_URL is not ours to kill")
    with PostgresServer() as server:
        server.start()
        yield server


async def test_what_was_acknowledged_survives_the_kill_of_the_server(
    own_server: PostgresServer, clock: ManualClock
) -> None:
    acknowledged: set[object] = set()
    refused: list[PostroomError] = []
    enough = asyncio.Event()

    async with opened(own_server.dsn, "postroom", clock) as store, asyncio.timeout(50):

        async def work(task: int) -> None:
            for number in range(100_000):
                name = f"{task:02}-{number:05}"
                said = await outcome(store, looked(name), str(task))
                if isinstance(said, StoreUnavailable | CommitUnknown):
                    refused.append(said)
                    return
                acknowledged.add(said)
                if len(acknowledged) >= 300:
                    enough.set()

        async with asyncio.TaskGroup() as tasks:
            for task in range(16):
                tasks.create_task(work(task))
            await enough.wait()
            await asyncio.to_thread(own_server.kill)
        assert len(refused) == 16
        with pytest.raises(StoreUnavailable):
            await notes(store)
        await asyncio.to_thread(own_server.start)
        assert acknowledged <= set(await notes(store))
        assert await outcome(store, looked("after")) == "after"


async def test_a_database_that_cannot_hold_every_text_is_refused_and_left_as_it_was(
    own_server: PostgresServer,
) -> None:
    for encoding in ("LATIN1", "SQL_ASCII"):
        name = encoding.lower()
        with connected(own_server.dsn, "public") as operator:
            made = f"CREATE DATABASE {name} ENCODING {encoding} TEMPLATE template0 LOCALE 'C'"
            await asyncio.to_thread(asked, operator, made)
        dsn = f"{own_server.dsn.rpartition('/')[0]}/{name}"
        with pytest.raises(ConfigError, match=f"the database uses {encoding}") as refused:
            await asyncio.to_thread(PostgresStore.open, dsn)
        assert "UTF8" in (refused.value.remedy or "")
        with connected(dsn, "public") as operator:
            schemas = await asyncio.to_thread(
                asked, operator, "SELECT count(*) FROM pg_namespace WHERE nspname = 'postroom'"
            )
        assert schemas == [0]


# The schema


@contextmanager
def connected(dsn: str, schema: str) -> Iterator[Connection]:
    connection = Connection(Address(dsn=dsn, schema=schema))
    yield connection
    connection.close()


def test_a_step_that_fails_leaves_the_schema_as_it_was(postgres_dsn: str, a_schema: str) -> None:
    address = Address(dsn=postgres_dsn, schema=a_schema)
    bad = Migration(version=2, name="bad", sql="CREATE TABLE one (a bigint); CREATE TABLE one (a bigint);")
    good = Migration(version=1, name="good", sql="CREATE TABLE a (b bigint); INSERT INTO a VALUES (1);")
    with connected(postgres_dsn, a_schema) as connection:
        with pytest.raises(StoreError, match="already exists"):
            migrate(connection, address, steps=[good, bad])
        assert migrate(connection, address, steps=[good]) == [1]
        assert migrate(connection, address, steps=[good]) == []
        with pytest.raises(StoreCorrupt):
            migrate(connection, address, steps=[replace(good, sql="SELECT 1")])
        alone = Migration(version=2, name="alone", sql="-- after: 0002\nCREATE TABLE c (d bigint);")
        assert migrate(connection, address, steps=[good, alone]) == [2]
        with pytest.raises(SchemaTooNew):
            migrate(connection, address, steps=[good])


async def test_stores_that_are_opened_at_once_make_the_schema_once(postgres_dsn: str, a_schema: str) -> None:
    def opening() -> None:
        PostgresStore.open(postgres_dsn, schema=a_schema).close()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(asyncio.to_thread(opening))
    with connected(postgres_dsn, a_schema) as connection:
        found = asked(connection, "SELECT version FROM schema_migrations ORDER BY version")
    assert found == [step.version for step in await asyncio.to_thread(shipped_migrations, "postgres")]


def test_a_server_that_ends_while_a_store_is_opened_counts_as_unreachable(
    postgres_dsn: str, a_schema: str
) -> None:
    held = lock_number(f"postroom writes {a_schema} 0")
    refused: list[BaseException] = []

    def opening() -> None:
        try:
            PostgresStore.open(postgres_dsn, schema=a_schema).close()
        except Exception as error:
            refused.append(error)

    with connected(postgres_dsn, a_schema) as connection:
        asked(connection, f"SELECT pg_advisory_lock({held})")
        opens = threading.Thread(target=opening)
        opens.start()
        while not asked(
            connection,
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            f" AND ((classid::bigint << 32) | objid::bigint) = {held}",
        ):
            assert opens.is_alive(), refused
        opens.join(PATIENCE)
    [error] = refused
    assert isinstance(error, StoreUnavailable)


@pytest.mark.parametrize("size", [0, 1_200_000])
async def test_room_is_taken_as_large_as_it_is_wanted(store: SqlStore, size: int) -> None:
    """On disk: the server whose temporary files are limited to less than half of it refuses, one with a little more does
    not.
    """
    wanted = max(size, MIN_SPACE)

    def within(limit: int) -> Change:
        def change(sql: SqlTransaction) -> None:
            rows(sql, "SELECT set_config('temp_file_limit', $1, true)", f"{limit // 1024}kB")
            store.engine.take_room(sql, size)

        return change

    refused = await outcome(store, within(wanted // 2))
    assert isinstance(refused, StoreUnavailable)
    assert "temp_file_limit" in str(refused)
    assert await outcome(store, within(2 * wanted)) is None
