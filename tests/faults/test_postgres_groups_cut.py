"""A session that is ended at each statement of a group in turn: every change is whole or absent, no caller waits forever."""

import asyncio
import threading
from itertools import count

import psycopg
import pytest

from faults.test_postgres_engine import (
    Change,
    as_one_group,
    noting,
    opened,
    outcome,
    rows,
)
from postroom.contracts.errors import CommitUnknown
from postroom.stores.postgres.connection import Connection
from postroom.stores.sql_transaction import SqlTransaction
from postroom.stores.store import SqlStore
from postroom.testing import ManualClock

pytestmark = pytest.mark.long

NAMES = "abcd"


def writing(name: str) -> Change:
    """Write two rows, one of them by the statement that a group shares; nothing when that was done before."""

    def change(sql: SqlTransaction) -> str:
        sql.lock(name)
        if rows(sql, "SELECT name FROM jottings WHERE name = $1", name):
            return name
        run = {"run_id": name, "thread_id": name, "status": "created", "holds_others": 0}
        sql.run("threads.add_run", {**run, "created_at": 1, "updated_at": 1, "body": '"1"'})
        noting(name)(sql)
        return name

    return change


async def written(store: SqlStore, prefix: str) -> tuple[set[object], set[object]]:
    """Return of which changes there is a row in the one table, and in the other."""

    def look(sql: SqlTransaction) -> tuple[set[object], set[object]]:
        noted, runs = (
            set(rows(sql, f"SELECT {column} FROM {table} WHERE {column} LIKE $1", f"{prefix}%"))
            for column, table in (("name", "jottings"), ("run_id", "runs"))
        )
        return noted, runs

    return await store.engine.read(look)


class Ending:
    """Ends the session of a writer at one of the statements that it sends."""

    def __init__(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._dsn, self._note = dsn, Connection._note
        self.at = 0
        self.sent = 0
        self.has_ended = False
        ending = self

        def note(connection: Connection, text: str) -> None:
            if threading.current_thread().name.startswith("postroom-writer"):
                ending.before(connection)
            ending._note(connection, text)

        monkeypatch.setattr(Connection, "_note", note)

    def arm(self, at: int) -> None:
        self.at, self.sent, self.has_ended = at, 0, False

    def before(self, connection: Connection) -> None:
        self.sent += 1
        if self.sent == self.at and not self.has_ended:
            self.has_ended = True
            connection.flush()  # what was sent so far is done, or begun
            with psycopg.connect(self._dsn, autocommit=True) as session:
                session.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.pid,))


async def test_whatever_statement_of_a_group_a_session_ends_at_each_change_is_whole_or_absent(
    postgres_dsn: str, a_schema: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_dsn, a_schema, clock) as store:
        ending = Ending(postgres_dsn, monkeypatch)
        unknown = 0
        for at in count(1):
            names = [f"{at}-{name}" for name in NAMES]
            ending.arm(at)
            async with asyncio.timeout(60):
                learned = await as_one_group(store, *map(writing, names))
            if not ending.has_ended:
                break
            noted, runs = await written(store, f"{at}-")
            assert noted == runs, f"a change is in parts, at statement {at}"
            for name, told in zip(names, learned, strict=True):
                assert told == name or isinstance(told, CommitUnknown)
                assert told != name or name in noted, f"{name} was acknowledged and is lost"
                unknown += told != name
                assert await outcome(store, writing(name)) == name
            assert (await written(store, f"{at}-")) == (set(names), set(names))
        assert at > len(NAMES)
        assert unknown >= len(NAMES), "the session ended before the commit was answered"
