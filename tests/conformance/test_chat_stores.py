"""Chats in their tables: unreadable rows, plans of statements, constraints of schemas, two processes."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conformance.promises.chat_given import (
    brought_to,
    inbound_ids,
    key,
    person,
    received,
    session,
)
from log_lines import capture_logs
from machine import PATIENCE
from postroom.contracts.chat import (
    ChatSession,
    InboundMessage,
    InboundMove,
    InboundStatus,
    Received,
    SessionThread,
)
from postroom.contracts.chat_people import PairingRequest, Person
from postroom.contracts.errors import StoreCorrupt
from postroom.contracts.files import ChatFile
from postroom.contracts.records import Record
from postroom.stores.chats.stores import ChatStores
from postroom.stores.migrations import shipped_migrations
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sql_transaction import statements
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.connection import add_functions
from postroom.stores.sqlite.migrate import split_statements
from postroom.stores.store import SqlStore, Transaction
from postroom.testing import ManualClock
from sqlite_files import open_new
from store_kinds import SCHEMA, checked, opened
from table_rows import each_row

DONE = InboundStatus.DONE
on_postgres = pytest.mark.parametrize("place", ["postgres"], indirect=True)
"""For what many processes share."""
on_both = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
"""For what each schema refuses."""
Spoil = Callable[..., Awaitable[list[Any]]]


@dataclass(frozen=True)
class Opened:
    """The chat stores of a place, and a way to write what no store would."""

    chat: ChatStores
    spoil: Spoil
    store: SqlStore | None = None
    dsn: str = ""
    schema: str = ""

    @property
    def is_postgres(self) -> bool:
        return bool(self.dsn)

    def opened_again(self, clock: ManualClock | None) -> SqlStore:
        """Return the place as another process sees it."""
        return PostgresStore.open(self.dsn, schema=self.schema, clock=clock).store


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Opened]:
    if getattr(request, "param", "sqlite") == "sqlite":
        store = open_new(tmp_path / "postroom.db", clock)
        yield Opened(store.chat, partial(on_the_writer, store), checked(store.store))
        store.close()
    else:
        dsn = request.getfixturevalue("postgres_dsn")
        with opened("postgres", tmp_path, lambda: dsn, clock) as shared:
            spoil = partial(asyncio.to_thread, on_the_server, dsn, SCHEMA)
            yield Opened(ChatStores(shared, is_shared=True), spoil, shared, dsn, SCHEMA)


async def on_the_writer(store: SqliteStore, change: str, *values: object) -> list[Any]:
    """Write what no record can be, as a broken disk or a foreign program may."""

    def spoil(db: sqlite3.Connection) -> list[Any]:
        db.execute("PRAGMA ignore_check_constraints = ON")
        try:
            return db.execute(re.sub(r"\$\d+", "?", change), values).fetchall()
        finally:
            db.execute("PRAGMA ignore_check_constraints = OFF")

    return await store.store.engine.engine.write(lambda sql: spoil(sql.connection))  # beneath the checks


def on_the_server(dsn: str, schema: str, change: str, *values: object) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema}"')
        cursor = psycopg.RawCursor(connection)
        cursor.execute(change.encode(), values)
        return cursor.fetchall() if cursor.description else []


# Rows that do not read back


def said(logs: list[Any]) -> list[tuple[str, str]]:
    return [(one["kind"], one["id"]) for one in logs if one["event"] == "store.row_quarantined"]


async def test_a_message_that_does_not_read_back_stops_no_other(place: Opened) -> None:
    stores = place.chat
    for body in ("{", "[1]", "null", '"text"'):
        messages = [await received(stores, f"{number}{body}", session_key=body) for number in range(4)]
        ids, bad = inbound_ids(messages), messages[1].inbound_id
        await place.spoil("UPDATE inbound_messages SET body = $1 WHERE inbound_id = $2", body, bad)
        first, *others = [one for one in ids if one != bad]
        with capture_logs() as logs:
            for _ in range(2):
                found = await stores.intake_log.open_messages(session_key=body)
                assert inbound_ids(found) == [first, *others]
                found = await stores.intake_log.open_messages(session_key=body, after=first, limit=2)
                assert inbound_ids(found) == others
                assert inbound_ids(await stores.intake_log.messages(ids)) == [first, *others]
        assert said(logs) == [("inbound", str(bad))]
        await stores.intake_log.move([first, *others], InboundMove(status=DONE))


async def test_a_page_is_whole_whatever_does_not_read_back(place: Opened) -> None:
    stores = place.chat
    messages = [await received(stores, f"m{number}") for number in range(6)]
    for inbound in messages[:4]:
        await place.spoil("UPDATE inbound_messages SET body = '{' WHERE inbound_id = $1", inbound.inbound_id)
    assert inbound_ids(await stores.intake_log.open_messages(limit=2)) == inbound_ids(messages[4:])


async def test_who_asks_for_a_message_that_does_not_read_back_learns_it(
    place: Opened, clock: ManualClock
) -> None:
    stores = place.chat
    first, bad = await received(stores, "m1"), await received(stores, "m2")
    await place.spoil("UPDATE inbound_messages SET body = '{' WHERE inbound_id = $1", bad.inbound_id)
    for call in (
        lambda: stores.intake_log.find(bad.key),
        lambda: stores.intake_log.edit(bad.key, {"n": 1}),
        lambda: stores.intake_log.move(inbound_ids([first, bad]), InboundMove(status=DONE)),
    ):
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match=str(bad.inbound_id)):
                await call()
    assert await stores.intake_log.open_messages() == (first,)
    assert await stores.intake_log.counts() == {InboundStatus.WAITING: 2}


async def test_what_was_said_of_a_message_goes_with_it(place: Opened, clock: ManualClock) -> None:
    stores = place.chat
    bad = await brought_to(stores, "m1", DONE)
    await place.spoil("UPDATE inbound_messages SET body = '{' WHERE inbound_id = $1", bad.inbound_id)
    assert await stores.intake_log.messages([bad.inbound_id]) == ()
    assert len(await place.spoil("SELECT id FROM unreadable_rows WHERE kind = 'inbound'")) == 1
    clock.advance(timedelta(seconds=1))
    assert await stores.intake_log.purge(older_than=clock.now()) == 1
    assert await place.spoil("SELECT id FROM unreadable_rows") == []


async def test_a_session_that_does_not_read_back_stops_no_other(place: Opened) -> None:
    stores = place.chat
    for column in ("source", "settings"):
        names = [f"{column}{number}" for number in range(3)]
        for name in names:
            await stores.sessions.open(session(name))
        bad = names[1]
        await place.spoil(f"UPDATE chat_sessions SET {column} = '[]' WHERE session_key = $1", bad)
        with capture_logs() as logs:
            for _ in range(2):
                found = await stores.sessions.sessions(after=column, limit=2)
                assert [one.session_key for one in found] == [names[0], names[2]]
        assert said(logs) == [("session", bad)]
        for call in (
            stores.sessions.load(bad),
            stores.sessions.put(session(bad)),
            stores.sessions.open(session(bad)),
        ):
            with pytest.raises(StoreCorrupt, match=bad):
                await call
        assert await stores.sessions.thread(f"chat/{bad}") is not None


async def test_a_person_that_does_not_read_back_stops_no_other(place: Opened) -> None:
    stores = place.chat
    for number in range(3):
        await stores.people.let_in(person(f"u{number}"))
    await place.spoil("UPDATE chat_people SET role = 'king' WHERE user_id = 'u1'")
    with capture_logs() as logs:
        for platform in (None, "telegram"):
            found = await stores.people.people(platform=platform, limit=2)
            assert [one.user_id for one in found] == ["u0", "u2"]
    assert said(logs) == [("person", "telegram u1")]
    with pytest.raises(StoreCorrupt, match="u1"):
        await stores.people.person("telegram", "u1")


# What the schema of SQLite promises


RECORDS = {
    "chat_sessions": ChatSession,
    "chat_conversations": SessionThread,
    "chat_people": Person,
    "chat_requests": PairingRequest,
    "chat_files": ChatFile,
}


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        add_functions(connection)
        for step in shipped_migrations("sqlite"):
            for statement in split_statements(step.sql):
                connection.execute(statement)
        yield connection


@each_row("table", RECORDS)
def test_the_columns_are_the_fields(empty: sqlite3.Connection, table: str) -> None:
    columns = [row[1] for row in empty.execute(f"PRAGMA table_info({table})")]
    kind = RECORDS[table]
    named = kind.__struct_fields__ if issubclass(kind, Record) else [one.name for one in fields(kind)]
    assert columns == list(named)


# What the schemas refuse, whatever program writes


INBOUND = {
    "platform": "p",
    "account": "a",
    "chat_id": "c",
    "message_id": "m",
    "session_key": "s",
    "body": "{}",
    "status": "waiting",
    "is_open": 1,
    "received_at": 1,
    "updated_at": 1,
    "revision": 1,
}
ROWS: dict[str, dict[str, Any]] = {
    "inbound_messages": INBOUND,
    "chat_sessions": {
        "session_key": "s",
        "thread_id": "t",
        "source": "{}",
        "settings": "{}",
        "created_at": 1,
        "updated_at": 1,
        "active_at": 1,
        "revision": 1,
    },
    "chat_conversations": {
        "thread_id": "t",
        "session_key": "s",
        "title": "x",
        "created_at": 1,
        "active_at": 1,
    },
    "chat_people": {"platform": "p", "user_id": "u", "role": "owner", "added_at": 1},
    "chat_requests": {"platform": "p", "user_id": "u", "code_hash": "h", "asked_at": 1, "expires_at": 1},
    "pairing_failures": {"platform": "p", "failures": 0, "locked_until": 0},
}
BLANK = ("", " ", "\t\n")
WRONG: list[tuple[str, dict[str, Any]]] = [
    *(
        ("inbound_messages", {part: blank})
        for part in ("platform", "account", "chat_id", "message_id", "session_key")
        for blank in BLANK
    ),
    *(("inbound_messages", {"status": status}) for status in ("", "Waiting", "gone")),
    ("inbound_messages", {"revision": 0}),
    *(("chat_sessions", {part: blank}) for part in ("session_key", "thread_id") for blank in BLANK),
    ("chat_sessions", {"revision": 0}),
    *(("chat_conversations", {part: blank}) for part in ("session_key", "thread_id") for blank in BLANK),
    *(("chat_people", {part: blank}) for part in ("platform", "user_id") for blank in BLANK),
    ("chat_people", {"role": "king"}),
    *(("chat_requests", {part: blank}) for part in ("platform", "user_id", "code_hash") for blank in BLANK),
    ("pairing_failures", {"failures": -1}),
]
TWICE: list[tuple[str, dict[str, Any]]] = [
    ("inbound_messages", {"session_key": "other", "body": "[]"}),
    ("chat_sessions", {"thread_id": "other"}),
    ("chat_sessions", {"session_key": "other"}),
    ("chat_conversations", {"session_key": "other"}),
    ("chat_conversations", {"thread_id": "other"}),
    ("chat_people", {"role": "member"}),
    ("chat_requests", {"code_hash": "other"}),
]


async def written(place: Opened, table: str, changes: dict[str, Any]) -> None:
    row = {**ROWS[table], **changes}
    marks = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
    if place.is_postgres:
        await place.spoil(statement, *row.values())
        return
    assert place.store is not None
    text, values = re.sub(r"\$\d+", "?", statement), tuple(row.values())
    await place.store.engine.engine.write(lambda sql: sql.connection.execute(text, values))  # type: ignore[attr-defined]


@on_both
async def test_the_schema_refuses_what_no_record_can_be(place: Opened) -> None:
    for table, changes in WRONG:
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            await written(place, table, changes)
    for table in ROWS:
        await written(place, table, {})


@on_both
async def test_the_schema_refuses_what_must_never_be_twice(place: Opened) -> None:
    for table in ROWS:
        await written(place, table, {})
    for table, changes in TWICE:
        with pytest.raises(Exception, match=r"(?i)unique constraint"):
            await written(place, table, changes)
    await written(place, "chat_conversations", {"thread_id": "t2", "title": None})
    await written(place, "chat_conversations", {"thread_id": "t3", "title": None})


HISTORY = """
INSERT INTO inbound_messages (platform, account, chat_id, message_id, session_key, body, status, is_open, received_at,
                        updated_at, revision)
SELECT 'p', 'a', 'c', 'm' || n, 's', '{}', 'done', 0, n, n, 1 FROM generate_series(1, 5000) n;
INSERT INTO chat_conversations (thread_id, session_key, title, created_at, active_at)
SELECT 't' || n, 's', 'title ' || n, n, n FROM generate_series(1, 5000) n
"""
READ_WHOLE = {"requests", "counts", "purge"}
"""A few, of all platforms if none is named; and statements that count or remove messages, at long intervals."""
FOUND_BY = {
    "open_inbound": "inbound_messages_open ",
    "open_inbound_of_session": "inbound_messages_open",
    "purge": "inbound_messages_ended ",
    "inbound": "inbound_messages_key ",
    "inbound_by_id": "inbound_messages_pkey ",
    "threads": "chat_conversations_active ",
    "threads_titled": "chat_conversations_title ",
}
"""The conditions that find the rows of a statement, for `inbound_messages` no others."""


def plans(dsn: str, schema: str) -> dict[str, str]:
    """Return the plan of each statement for unknown values, with a history that was counted once."""
    found = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema}"')
        connection.execute(HISTORY)
        connection.execute("ANALYZE inbound_messages, chat_conversations")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        # What has no index is read whole all the same; a table that is known to be empty is not, then.
        connection.execute("SET enable_seqscan = off")
        for whole, statement in statements("postgres").items():
            area, _, name = whole.partition(".")
            if area != "chats":
                continue
            connection.execute(f"PREPARE plan_{name} AS {statement.text}".encode())
            values = f"({', '.join(['NULL'] * len(statement.parameters))})" if statement.parameters else ""
            lines = connection.execute(f"EXPLAIN EXECUTE plan_{name}{values}".encode())
            found[name] = "\n".join(row[0] for row in lines)
    return found


@on_postgres
async def test_history_is_not_looked_at(place: Opened) -> None:
    found = await asyncio.to_thread(plans, place.dsn, place.schema)
    assert {name for name, text in found.items() if "Seq Scan" in text} <= READ_WHOLE
    assert {name: found[name] for name, index in FOUND_BY.items() if index not in found[name]} == {}


@on_postgres
async def test_two_processes_receive_a_message_once(place: Opened, clock: ManualClock) -> None:
    other = await asyncio.to_thread(place.opened_again, clock)
    here, there = place.chat, ChatStores(other, is_shared=True)
    try:
        assert place.store is not None
        assert other.identity == place.store.identity
        for number in range(8):
            async with asyncio.TaskGroup() as group:
                tries = [
                    group.create_task(stores.intake_log.receive(draft_of(number)))
                    for stores in (here, there) * 8
                ]
            assert sum(one.result().is_new for one in tries) == 1
            assert len({one.result().message.inbound_id for one in tries}) == 1
    finally:
        await asyncio.to_thread(other.close)


@on_postgres
async def test_a_message_that_another_is_writing_at_this_moment_is_waited_for(
    place: Opened, clock: ManualClock
) -> None:
    other = await asyncio.to_thread(place.opened_again, clock)
    draft, holds, released = draft_of(1), threading.Event(), threading.Event()

    def hold(tx: Transaction) -> InboundMessage:
        tx.lock("chat:telegram/bot/c")
        inbound = tx.chats.insert_inbound(draft, 1)
        holds.set()
        assert released.wait(PATIENCE)
        return inbound

    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            held = group.create_task(other.write(hold))
            await asyncio.to_thread(holds.wait, 5)
            received_too = group.create_task(place.chat.intake_log.receive(draft))
            while not await place.spoil("SELECT pid FROM pg_locks WHERE NOT granted"):
                pass  # it is another process that begins to wait: nobody tells of it
            released.set()
        assert received_too.result() == Received(message=held.result(), is_new=False)
    finally:
        released.set()
        await asyncio.to_thread(other.close)


@on_postgres
async def test_without_an_instant_the_databases_clock_is_asked(place: Opened) -> None:
    store = await asyncio.to_thread(place.opened_again, None)
    chat = ChatStores(store, is_shared=True)
    try:
        inbound = (await chat.intake_log.receive(draft_of(1))).message
        (moved,) = await chat.intake_log.move(
            [inbound.inbound_id], InboundMove(status=InboundStatus.HANDED_OVER)
        )
        opened_now = await chat.sessions.open(session())
        changed = await chat.sessions.put(opened_now)
        let_in = await chat.people.let_in(person())
        after = store.clock.now()
    finally:
        await asyncio.to_thread(store.close)
    instants = [
        inbound.received_at,
        moved.updated_at,
        opened_now.created_at,
        changed.updated_at,
        let_in.added_at,
    ]
    assert instants == sorted(instants)
    assert instants[-1] <= after
    assert opened_now.active_at == opened_now.created_at == opened_now.updated_at


def draft_of(number: int) -> InboundMessage:
    return InboundMessage(key=key(f"both {number}"), session_key="s")
