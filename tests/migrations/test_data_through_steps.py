"""What an earlier version wrote is there after the steps that made both engines alike.

The same rows are written to SQLite before its step 10 and to PostgreSQL before its step 3, carried on, and
compared; then the store of today reads them.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from migrations.copying import copy_to_postgres, rows_on_postgres
from postroom.contracts.chat import InboundStatus
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import CursorExpired
from postroom.contracts.messages import Message
from postroom.contracts.project_log import LogBounds
from postroom.contracts.runs import RunRecord, TerminationReason
from postroom.stores.codec import encode
from postroom.stores.migrations import shipped_migrations
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres import schema as on_postgres
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite import migrate as on_sqlite
from postroom.stores.sqlite.connection import connect
from postroom.stores.stores import Stores
from postroom.stores.transaction import Transaction

Row = dict[str, Any]
CLAIMED = {"claim_token": "k", "claimed_by": "me", "claimed_at": 5, "lease_until": 9, "attempt_count": 1}


def dispatch(number: int, status: str, **more: Any) -> Row:
    ended = status not in ("Queued", "Claimed")
    return {
        "dispatch_id": f"d{number}",
        "thread_id": f"t{number}",
        "run_id": f"r{number}",
        "created_at": 1,
        "available_at": 2,
        "updated_at": 3,
        "status": status,
        "priority": 100 + number,
        "dedupe_key": "once" if number % 2 else None,
        "dispatch_epoch": number,
        "attempt_count": 2,
        "max_attempts": 3,
        "deadline_at": None,
        "tenant": "x",
        "last_error": None if number % 2 else "it failed",
        "claim_token": None,
        "claimed_by": None,
        "claimed_at": None,
        "lease_until": None,
        "dispatch_instance_id": None,
        "run_status": "done" if ended else None,
        "termination": encode(TerminationReason.natural_end()) if status == "Acked" else None,
        "run_response": "said" if ended else None,
        "run_error": None,
        "completed_at": 8 if ended else None,
        "reconciled": int(not ended),
        "is_open": int(not ended),
        **(CLAIMED if status == "Claimed" else {}),
        **more,
    }


def effect(number: int, status: str, **more: Any) -> Row:
    is_claimed = status == "claimed"
    return {
        "place": number,
        "outbox_id": f"o{number}",
        "kind": "chat",
        "target": "x",
        "payload": '{"n":1}',
        "status": status,
        "available_at": 4,
        "created_at": 4,
        "dedupe_key": f"key{number}",
        "attempt_count": 1,
        "max_attempts": 3,
        "claim_token": "k" if is_claimed else None,
        "lease_until": 9 if is_claimed else None,
        "last_error": "gone",
        "order_key": "room",
        "may_have_arrived": 0,
        **more,
    }


def event(number: int, **more: Any) -> Row:
    return {
        "event_id": f"e{number}",
        "event_kind": "Kind",
        "payload": "{}",
        "sequences": f'{{"thread:t1":{number}}}',
        "created_at": number,
        "causation_id": None,
        "correlation_id": None,
        "origin": "Derived",
        "visibility": "public",
        "schema_version": 1,
        "writer_id": "w" if number == 1 else None,
        "key": "k" if number == 1 else None,
        "digest": "d" if number == 1 else None,
        **more,
    }


def inbound(number: int, status: str) -> Row:
    return {
        "inbound_id": number,
        "platform": "telegram",
        "account": "a",
        "chat_id": "c",
        "message_id": f"m{number}",
        "session_key": "s",
        "sender_id": "8",
        "body": '{"text":"hello"}',
        "status": status,
        "received_at": 1,
        "updated_at": 2,
        "revision": 1,
        "thread_id": None,
        "reason": "no" if status == "rejected" else None,
        "is_open": int(status in ("waiting", "handed_over")),
    }


SAID, RUN = Message.user("hello", id="m1"), RunRecord(run_id="r1", thread_id="t1", agent_id="a", created_at=1)
AFTERWARDS: dict[str, list[Row]] = {
    "dispatch_epochs": [{"thread_id": "t1", "epoch": 1}],
    "run_threads": [
        {
            "thread_id": "t1",
            "title": "Title",
            "resource_id": None,
            "parent_thread_id": None,
            "custom": "{}",
            "active_run_id": None,
            "open_run_id": None,
            "latest_run_id": None,
            "latest_run_updated_at": None,
            "message_count": 1,
            "created_at": 1,
            "updated_at": 1,
        }
    ],
    "runs": [
        {
            "run_id": "r1",
            "thread_id": "t1",
            "status": "created",
            "created_at": 1,
            "updated_at": 1,
            "body": encode(RUN),
        }
    ],
    "run_messages": [
        {
            "thread_id": "t1",
            "seq": 1,
            "message_id": "m1",
            "run_id": None,
            "visibility": "all",
            "created_at": 1,
            "body": encode(SAID),
        }
    ],
    "pending_messages": [
        {
            "thread_id": "t1",
            "place": 3,
            "pending_id": "m1",
            "revision": 2,
            "mode": '{"mode":"queue"}',
            "body": encode(SAID),
            "created_at": 1,
            "updated_at": 2,
        }
    ],
    "thread_states": [{"thread_id": "t1", "body": '{"step":1}'}],
    "run_spending": [{"scope": "agent:a", "runs": 1, "wall_ms": 2, "tokens": 3, "cost_micros": 4}],
    "run_dispatches": [
        dispatch(number, status.value) for number, status in enumerate(RunDispatchStatus, start=1)
    ],
    "events": [event(1), event(2)],
    "event_scopes": [
        {"scope": "run:r1", "seq": 1, "event_id": "e2"},
        {"scope": "thread:t1", "seq": 1, "event_id": "e1"},
        {"scope": "thread:t1", "seq": 2, "event_id": "e2"},
    ],
    "outbox": [
        effect(1, "pending", kind="mail"),
        effect(2, "claimed", may_have_arrived=1),
        effect(3, "delivered"),
        effect(4, "dead_letter"),
    ],
    "inbound_messages": [
        inbound(number, status.value) for number, status in enumerate(InboundStatus, start=1)
    ],
    "chat_sessions": [
        {
            "session_key": "s",
            "thread_id": "t9",
            "source": "{}",
            "title": "Title",
            "settings": "{}",
            "created_at": 1,
            "updated_at": 1,
            "active_at": 1,
            "revision": 1,
        }
    ],
    "chat_people": [{"platform": "telegram", "user_id": "8", "role": "owner", "name": "H", "added_at": 1}],
    "pairing_failures": [{"platform": "telegram", "failures": 2, "locked_until": 0}],
}


def former(table: str, row: Row) -> Row:
    """Return a row as it stood before, on either engine."""
    row = dict(row)
    if table == "outbox":
        row["lane"] = row.pop("kind").replace("mail", "letters")
        if row.pop("may_have_arrived"):
            row["last_error"] = "#1 tried 2?: gone"
    if table == "inbound_messages":
        row["line_id"] = row.pop("inbound_id")
    if table == "pairing_failures":
        row["wrong"] = row.pop("failures")
    return row


def former_on_sqlite(table: str, row: Row) -> Row:
    row = former(table, row)
    if table == "events":
        row["event"] = int(row["event_id"][1:])
    if table == "event_scopes":
        row["event"] = int(row.pop("event_id")[1:])
    return row


def former_on_postgres(table: str, row: Row) -> Row:
    row = former(table, row)
    row.pop("is_open", None)
    if table == "run_dispatches":
        row |= {"reconciled": bool(row["reconciled"]), "thread_epoch": row["dispatch_epoch"]}
    return row


FORMER_NAMES = {
    "outbox": "run_outbox",
    "events": "run_events",
    "event_scopes": "run_event_scopes",
    "inbound_messages": "chat_lines",
    "pairing_failures": "chat_guesses",
}


def former_name(table: str) -> str:
    return FORMER_NAMES.get(table, table)


Filled = Callable[[], tuple[Stores, dict[str, list[Row]]]]


@pytest.fixture
def filled_sqlite(tmp_path: Path) -> Filled:
    def filled() -> tuple[Stores, dict[str, list[Row]]]:
        path, steps = tmp_path / "postroom.db", shipped_migrations("sqlite")
        with closing(connect(path)) as connection:
            on_sqlite.migrate(connection, path, now=1, steps=[step for step in steps if step.version < 10])
            for table, rows in AFTERWARDS.items():
                for row in rows:
                    old = former_on_sqlite(table, row)
                    places = ", ".join(f":{name}" for name in old)
                    connection.execute(
                        f"INSERT INTO {former_name(table)} ({', '.join(old)}) VALUES ({places})", old
                    )
        store = SqliteStore.open(path, purpose="test")
        with closing(sqlite3.connect(path)) as connection:
            return store, {
                table: [
                    dict(zip(rows[0], row, strict=True))
                    for row in connection.execute(f"SELECT {', '.join(rows[0])} FROM {table} ORDER BY 1, 2")
                ]
                for table, rows in AFTERWARDS.items()
            }

    return filled


@pytest.fixture
def filled_postgres(request: pytest.FixtureRequest) -> Filled:
    def filled() -> tuple[Stores, dict[str, list[Row]]]:
        dsn, schema = request.getfixturevalue("postgres_dsn"), request.getfixturevalue("a_schema")
        address = Address(dsn=dsn, schema=schema)
        steps = [step for step in shipped_migrations("postgres") if step.version < 3]
        with closing(Connection(address)) as connection:
            on_postgres.migrate(connection, address, steps=steps)
        with psycopg.connect(dsn, autocommit=True) as session:
            session.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
            for table, rows in AFTERWARDS.items():
                for row in rows:
                    old = former_on_postgres(table, row)
                    session.execute(
                        sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
                            sql.Identifier(former_name(table)),
                            sql.SQL(", ").join(map(sql.Identifier, old)),
                            sql.SQL(", ").join(map(sql.Placeholder, old)),
                        ),
                        old,
                    )
            store = PostgresStore.open(dsn, schema=schema)
            return store, {
                table: [
                    dict(zip(rows[0], row, strict=True))
                    for row in rows_on_postgres(session, table, list(rows[0]))
                ]
                for table, rows in AFTERWARDS.items()
            }

    return filled


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_runs_and_chats_of_an_earlier_version_are_as_they_were(
    engine: str, request: pytest.FixtureRequest
) -> None:
    stores, found = request.getfixturevalue(f"filled_{engine}")()
    try:
        for table, rows in AFTERWARDS.items():
            assert found[table] == rows, table
        asyncio.run(_is_read(stores))
        assert asyncio.run(stores.check()) == []
    finally:
        stores.close()


async def _is_read(stores: Stores) -> None:
    """Look at what was kept through the store of today."""

    def look(tx: Transaction) -> None:
        for number, status in enumerate(RunDispatchStatus, start=1):
            [kept] = tx.runs.dispatches.by_status(status, limit=10, after=None)
            assert (kept.dispatch_id, kept.thread_id) == (f"d{number}", f"t{number}")
        assert tx.runs.threads.load_run("r1") == RUN
        assert [one.message for one in tx.runs.messages.waiting("t1")] == [SAID]
        assert [one.message for one in tx.runs.messages.named("t1", ("m1",))] == [SAID]
        assert [one.event_id for one in tx.events.behind("thread:t1", 0, 10).events] == ["e1", "e2"]
        assert [one.outbox_id for one in tx.outbox.dead_letters(kind=None, after="", limit=9)] == ["o4"]
        assert set(tx.chats.count_inbound().values()) == {1}

    await stores.store.read(look)


@pytest.mark.long
def test_a_copy_on_postgresql_holds_every_row(
    tmp_path: Path, filled_sqlite: Filled, postgres_dsn: str, a_schema: str
) -> None:
    stores, _ = filled_sqlite()
    stores.close()
    copied = copy_to_postgres(tmp_path / "postroom.db", postgres_dsn, schema=a_schema)
    assert len(copied["run_dispatches"][1]) == len(RunDispatchStatus)
    with psycopg.connect(postgres_dsn) as session:
        session.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(a_schema)))
        for table, (columns, rows) in copied.items():
            assert rows_on_postgres(session, table, columns) == rows, table
    store = PostgresStore.open(postgres_dsn, schema=a_schema)
    try:
        asyncio.run(_is_read(store))
        assert asyncio.run(store.check()) == []
    finally:
        store.close()


RELAYED = [("archive", "message:3", 7, 5, 2, "no git"), ("wake", "3/4", 7, 5, 0, "")]


async def _mail_effects(stores: Stores) -> None:
    """Look at the effects of mail that an earlier version stored."""

    def look(tx: Transaction) -> list[Any]:
        rows = [*tx.outbox.open("archive", limit=9), *tx.outbox.open("wake", limit=9)]  # those are not kept
        return [(row.target, row.payload, row.created_at, row.attempt_count, row.last_error) for row in rows]

    assert await stores.store.read(look) == [
        ("7", {"record": "message:3"}, 5, 2, "no git"),
    ]
    assert await stores.store.read(lambda tx: tx.outbox.due(("archive",))) == [("archive", "7")]
    [row] = await stores.store.write(lambda tx: tx.outbox.claim("archive", "7", lease_ms=9, limit=9))
    assert await stores.store.write(lambda tx: tx.outbox.ack([row.outbox_id], [row.claim_token or ""])) == 1


_ADD = "INSERT INTO outbox (topic, key, project_id, created_at, attempts, last_error) VALUES "


LOGGED = [
    (7, 5, 50, "message.sent", 3, 4, None, None, '{"thread_id":"t","importance":"high"}'),
    (7, 6, 60, "reservation.made", 3, None, 9, None, '{"path":"a","exclusive":true}'),
    (8, 1, 60, "run.began", None, None, None, "r1", "{}"),
]
_PROJECT = "INSERT INTO projects (id, slug, human_key, created_at, spelling) VALUES "
_ENTRY = (
    "INSERT INTO project_events"
    " (project_id, seq, at, kind, agent_id, message_id, reservation_id, run_id, detail) VALUES "
)


async def _project_logs(stores: Stores) -> None:
    """Look at what an earlier version told of projects, whose oldest entries were trimmed, and go on."""

    def look(tx: Transaction) -> list[Any]:
        found = [*tx.mail.project_events(7, after=4, limit=9), *tx.mail.project_events(8, after=0, limit=9)]
        return [(one.project_id, one.seq, *astuple(one.happening)) for one in found]

    expected = [
        (project_id, seq, kind, at, *ids, json.loads(detail))
        for project_id, seq, at, kind, *ids, detail in LOGGED
    ]
    assert await stores.store.read(look) == expected
    assert await stores.store.read(lambda tx: tx.mail.log_bounds(7)) == LogBounds(oldest=4, newest=6)
    page = await stores.store.read(lambda tx: tx.events.behind("project:7", 5, 9))
    assert [(one.event_kind, one.sequences) for one in page.events] == [
        ("reservation.made", {"project:7": 6})
    ]
    with pytest.raises(CursorExpired):
        await stores.store.read(lambda tx: tx.events.behind("project:7", 3, 9))
    await stores.store.write(_next_entry)
    assert await stores.store.read(lambda tx: tx.mail.log_bounds(7)) == LogBounds(oldest=4, newest=7)
    assert await stores.store.write(lambda tx: tx.mail.trim_log(7, keep=1, limit=9)) == 2
    assert await stores.store.read(lambda tx: tx.mail.log_bounds(7)) == LogBounds(oldest=6, newest=7)
    assert await stores.store.read(lambda tx: tx.events.load("evt_project_7_5")) is None


def _next_entry(tx: Transaction) -> None:
    tx.mail.insert_agent(7, name="Ada", program="p", model="m", task_description="", now=70)


def test_effects_and_logs_of_mail_are_in_the_one_outbox_and_log_afterwards(tmp_path: Path) -> None:
    path, steps = tmp_path / "postroom.db", shipped_migrations("sqlite")
    with closing(connect(path)) as connection:
        on_sqlite.migrate(connection, path, now=1, steps=[step for step in steps if step.version < 14])
        connection.executemany(f"{_ADD} (?, ?, ?, ?, ?, ?)", RELAYED)
        for project_id in (7, 8):
            connection.execute(f"{_PROJECT} (?, ?, ?, 1, ?)", [project_id, *[f"/p{project_id}"] * 3])
        connection.executemany(f"{_ENTRY} ({', '.join('?' * 9)})", LOGGED)
        assert not connection.in_transaction
    store = SqliteStore.open(path, purpose="test")
    try:
        asyncio.run(_mail_effects(store))
        asyncio.run(_project_logs(store))
    finally:
        store.close()


@pytest.mark.long
def test_effects_and_logs_of_mail_are_in_the_one_outbox_and_log_afterwards_on_postgresql(
    postgres_dsn: str, a_schema: str
) -> None:
    address = Address(dsn=postgres_dsn, schema=a_schema)
    steps = [step for step in shipped_migrations("postgres") if step.version < 8]
    with closing(Connection(address)) as connection:
        on_postgres.migrate(connection, address, steps=steps)
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(a_schema)))
        for row in RELAYED:
            session.execute(f"{_ADD} (%s, %s, %s, %s, %s, %s)", row)
        for project_id in (7, 8):
            session.execute(f"{_PROJECT} (%s, %s, %s, 1, %s)", [project_id, *[f"/p{project_id}"] * 3])
        for entry in LOGGED:
            session.execute(f"{_ENTRY} ({', '.join(['%s'] * 9)})", entry)
    store = PostgresStore.open(postgres_dsn, schema=a_schema)
    try:
        asyncio.run(_mail_effects(store))
        asyncio.run(_project_logs(store))
    finally:
        store.close()
