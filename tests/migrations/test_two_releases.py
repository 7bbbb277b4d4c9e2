"""Two releases on one PostgreSQL: steps that let the previous release continue, and steps that wait until it has stopped.

The release before is the code of today; the steps of releases to come are made up here.
"""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg import pq, sql

from machine import PATIENCE
from mail_room import a_room, furnish
from postroom.contracts.errors import SchemaTooNew, StoreHeld
from postroom.contracts.leases import IsGone, nobody_is_gone
from postroom.contracts.messages import Json
from postroom.executors.processes.process_runner import is_gone, own_process
from postroom.leases import Leases
from postroom.stores.migrations import Migration, newest_of, shipped_migrations
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.postgres.engine import PostgresEngine
from postroom.stores.postgres.schema import migrate
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sql_transaction import statements
from postroom.stores.sqlite.migrate import split_statements
from postroom.testing import ManualClock
from table_rows import each_row

TODAY = shipped_migrations("postgres")
NEWEST = newest_of(TODAY)
ADDS = Migration(
    version=NEWEST + 1, name="adds", sql="ALTER TABLE messages ADD COLUMN mood text NOT NULL DEFAULT 'calm';"
)
TAKES_AWAY = Migration(
    version=NEWEST + 2,
    name="takes_away",
    sql=f"-- after: {ADDS.version:04}\n\nALTER TABLE messages DROP COLUMN mood;",
)
LAST_OF_BEFORE = 30
"""The last step before the first release: later steps keep the rule."""


@contextmanager
def connected(dsn: str, schema: str) -> Iterator[Connection]:
    with closing(Connection(Address(dsn=dsn, schema=schema))) as connection:
        yield connection


def upgrade(dsn: str, schema: str, *steps: Migration, is_gone: IsGone = nobody_is_gone) -> list[int]:
    """Act as the start of a release that knows these steps besides those of today."""
    with connected(dsn, schema) as connection:
        return migrate(connection, Address(dsn=dsn, schema=schema), steps=[*TODAY, *steps], is_gone=is_gone)


@pytest.fixture
def store(postgres_dsn: str, a_schema: str, clock: ManualClock) -> Iterator[PostgresStore]:
    """A store that the release of today has open."""
    with closing(PostgresStore.open(postgres_dsn, schema=a_schema, clock=clock)) as opened:
        yield opened


def test_a_release_goes_on_and_starts_again_when_the_next_one_has_added_to_the_schema(
    store: PostgresStore, postgres_dsn: str, a_schema: str, clock: ManualClock
) -> None:
    asyncio.run(furnish(a_room(store, clock)))
    assert upgrade(postgres_dsn, a_schema, ADDS) == [ADDS.version]
    assert upgrade(postgres_dsn, a_schema, ADDS) == []
    _look_around(store, postgres_dsn, a_schema)
    assert asyncio.run(a_room(store, clock).send("Ada", "Ben"))
    with closing(PostgresStore.open(postgres_dsn, schema=a_schema, clock=clock)) as again:
        assert asyncio.run(a_room(again, clock).send("Ada", "Ben"))


def test_a_release_that_a_step_is_no_more_for_ends_its_work_and_does_not_start(
    store: PostgresStore, postgres_dsn: str, a_schema: str
) -> None:
    """For example a server that was suspended while all others were replaced, twice."""
    asyncio.run(store.store.probe())
    upgrade(postgres_dsn, a_schema, ADDS, TAKES_AWAY)
    _look_around(store, postgres_dsn, a_schema)
    for asked in (store.store.probe, lambda: store.store.read(lambda tx: tx.now())):
        with pytest.raises(SchemaTooNew, match=f"schema {TAKES_AWAY.version}"):
            asyncio.run(asked())
    with pytest.raises(SchemaTooNew, match=f"supports up to {NEWEST}"):
        PostgresStore.open(postgres_dsn, schema=a_schema)
    with pytest.raises(SchemaTooNew):
        upgrade(postgres_dsn, a_schema)
    assert upgrade(postgres_dsn, a_schema, ADDS) == []


def test_a_step_that_takes_something_away_waits_until_no_server_is_up_that_may_use_it(
    postgres_dsn: str, a_schema: str
) -> None:
    with closing(PostgresStore.open(postgres_dsn, schema=a_schema)) as store:
        asyncio.run(_waits_for_servers(store, postgres_dsn, a_schema))


async def _waits_for_servers(store: PostgresStore, dsn: str, schema: str) -> None:
    old, new = (
        Leases(store.store, f"mill/{newest}", {"schema": newest, "version": f"0.{newest}"})
        for newest in (NEWEST, ADDS.version)
    )
    async with new.serving():
        async with old.serving():
            with pytest.raises(
                StoreHeld,
                match=rf"(?m)without schema step {ADDS.version} is running: mill/{NEWEST} \(0.{NEWEST}\)$",
            ):
                await asyncio.to_thread(upgrade, dsn, schema, ADDS, TAKES_AWAY)
            assert await asyncio.to_thread(upgrade, dsn, schema, ADDS) == [ADDS.version]
        assert await asyncio.to_thread(upgrade, dsn, schema, ADDS, TAKES_AWAY) == [TAKES_AWAY.version]


def test_a_server_whose_process_is_gone_holds_up_no_step(
    postgres_dsn: str, a_schema: str, tmp_path: Path
) -> None:
    """A server that was killed: its lease continues for half a minute, and the next release starts during it."""
    there: dict[str, Json] = {**own_process(tmp_path), "schema": NEWEST}
    gone = {**there, "pid": ended_process()}
    with closing(PostgresStore.open(postgres_dsn, schema=a_schema)) as store:
        asyncio.run(_counts_for_a_step(store, postgres_dsn, a_schema, there=there, gone=gone))


async def _counts_for_a_step(
    store: PostgresStore, dsn: str, schema: str, *, there: Mapping[str, Json], gone: Mapping[str, Json]
) -> None:
    upgraded = partial(asyncio.to_thread, upgrade, dsn, schema, ADDS, TAKES_AWAY)
    await Leases(store.store, "mill/gone", gone).renew()
    with pytest.raises(StoreHeld, match=r"(?m)mill/gone$"):
        await upgraded()
    async with Leases(store.store, "mill/there", there).serving():
        with pytest.raises(
            StoreHeld, match=rf"(?m)without schema step {ADDS.version} is running: mill/there$"
        ):
            await upgraded(is_gone=is_gone)
    assert await upgraded(is_gone=is_gone) == [ADDS.version, TAKES_AWAY.version]


def ended_process() -> int:
    """Return the id of a process that was there a moment ago."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_step_that_cannot_have_a_table_holds_up_nobody_who_uses_it(
    store: PostgresStore, postgres_dsn: str, a_schema: str, clock: ManualClock
) -> None:
    """For example next to `pg_dump`, which keeps every table until its end."""
    room = a_room(store, clock)
    asyncio.run(furnish(room))
    done: list[int] = []
    upgrading = threading.Thread(target=lambda: done.extend(upgrade(postgres_dsn, a_schema, ADDS)))
    with psycopg.connect(postgres_dsn) as dump, psycopg.connect(postgres_dsn, autocommit=True) as looking:
        dump.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(a_schema, "messages"))
        )
        upgrading.start()
        try:
            while not looking.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            ).fetchall():
                assert upgrading.is_alive()
            for _ in range(3):
                asyncio.run(room.send("Ada", "Ben"))
            assert not done
        finally:
            dump.rollback()
    upgrading.join(PATIENCE)
    assert done == [ADDS.version]


def test_what_a_statement_answers_is_the_same_when_each_table_has_one_more_column(
    store: PostgresStore, postgres_dsn: str, a_schema: str
) -> None:
    """PostgreSQL refuses a prepared statement whose answer has another shape than before: `SELECT *`, and `RETURNING *`."""
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(a_schema)))
        prepared = {
            name: f"one_{number}".encode()
            for number, (name, found) in enumerate(statements("postgres").items())
            if session.pgconn.prepare(f"one_{number}".encode(), found.text.encode()).status
            == pq.ExecStatus.COMMAND_OK
        }
        assert len(prepared) > 300
        tables = session.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", [a_schema]
        ).fetchall()
        for (table,) in tables:
            session.execute(
                sql.SQL("ALTER TABLE {} ADD COLUMN further text NOT NULL DEFAULT ''").format(
                    sql.Identifier(table)
                )
            )
        refused = {
            name
            for name, handle in prepared.items()
            if session.pgconn.describe_prepared(handle).status != pq.ExecStatus.COMMAND_OK
        }
    assert refused == set()


# The rule for those who write steps


def not_additions(step: Migration) -> list[str]:
    """Return the statements that may take something away from the release before, or refuse what it writes.

    Allowed steps are certainly harmless: tables, indexes that refuse nothing, columns with a default, and filling of new
    columns.
    """
    code = re.sub(r"--.*", "", step.sql)
    new_tables = set(re.findall(r"CREATE TABLE (\w+)", code))
    new_columns = set(re.findall(r"ALTER TABLE (\w+)\s+ADD COLUMN (\w+)", code))

    def adds(text: str) -> bool:
        refers_to = set(re.findall(r"REFERENCES (\w+)\b(?! \(\w+\) ON DELETE CASCADE)", text)) - new_tables
        if match := re.match(r"CREATE TABLE (\w+) \(", text):
            return not refers_to
        if match := re.match(r"CREATE (UNIQUE )?INDEX \w+ ON (\w+) ", text):
            return not match[1] or match[2] in new_tables
        if match := re.match(r"ALTER TABLE (\w+) ADD COLUMN (?!IF )\w+ [^,;]*$", text):
            is_filled = " DEFAULT " in text or " NOT NULL" not in text
            return match[1] in new_tables or (
                is_filled and not re.search("UNIQUE|PRIMARY|REFERENCES|GENERATED", text)
            )
        if match := re.match(r"INSERT INTO (\w+) ", text):
            return match[1] in new_tables
        if match := re.match(r"UPDATE (\w+) SET (\w+) = [^,;]*$", text):
            return match[1] in new_tables or (match[1], match[2]) in new_columns
        return False

    texts = [" ".join(text.rstrip(";").split()) for text in split_statements(code)]
    return [text for text in texts if text and not adds(text)]


def breaks_the_rule(step: Migration, before: Sequence[int]) -> list[str]:
    """Return the faults of a step that follows the steps with these numbers."""
    if step.after:
        is_known = step.after in {*before, step.version}
        return [] if is_known else [f"it names step {step.after}, which is none before it"]
    return not_additions(step)


@each_row("step", [one for one in TODAY if one.version > LAST_OF_BEFORE] or [ADDS])
def test_a_step_leaves_the_release_before_at_work_or_says_after_which_step_it_comes(step: Migration) -> None:
    numbers = [one.version for one in TODAY if one.version < step.version]
    assert breaks_the_rule(step, numbers) == [], (
        "the release before may still be at work: see docs/internals/decisions/0069-a-step-leaves-the-release-before-at-work.md"
    )


@each_row(
    "text",
    [
        "ALTER TABLE messages DROP COLUMN topic;",
        "ALTER TABLE messages RENAME COLUMN topic TO subject_of;",
        "ALTER TABLE messages RENAME TO posts;",
        "DROP TABLE messages;",
        "DROP INDEX messages_thread;",
        "ALTER TABLE messages ALTER COLUMN topic TYPE bigint USING 1;",
        "ALTER TABLE messages ALTER COLUMN topic SET NOT NULL;",
        "ALTER TABLE messages ALTER COLUMN topic DROP NOT NULL;",
        "ALTER TABLE messages ADD CONSTRAINT short CHECK (length(topic) < 9);",
        "ALTER TABLE messages ADD COLUMN mood text NOT NULL;",
        "ALTER TABLE messages ADD COLUMN mood text DEFAULT '' UNIQUE;",
        "ALTER TABLE messages ADD COLUMN mood text, DROP COLUMN topic;",
        "CREATE UNIQUE INDEX one_topic ON messages (topic);",
        "CREATE TABLE moods (message_id bigint REFERENCES messages (id));",
        "UPDATE messages SET topic = lower(topic);",
        "DELETE FROM messages;",
        "INSERT INTO messages (topic) VALUES ('calm');",
        "-- It takes nothing away.\nCREATE TABLE moods (a text);\nTRUNCATE messages;",
    ],
)
def test_a_step_that_takes_away_or_refuses_what_the_release_before_writes_is_found(text: str) -> None:
    assert len(not_additions(Migration(version=99, name="planted", sql=text))) == 1
    told = Migration(version=99, name="planted", sql=f"-- Why.\n-- after: 0098\n\n{text}")
    assert breaks_the_rule(told, [97, 98]) == []
    assert breaks_the_rule(told, [97]) != []


def test_what_only_adds_is_an_addition() -> None:
    added = """-- Moods; their messages go on without.

CREATE TABLE moods (
  name text PRIMARY KEY,
  message_id bigint REFERENCES messages (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX moods_name ON moods (lower(name));
CREATE INDEX messages_mood ON messages (topic) WHERE topic <> '';
ALTER TABLE messages ADD COLUMN mood text;
ALTER TABLE messages ADD COLUMN depth bigint NOT NULL DEFAULT 0 CHECK (depth >= 0);
UPDATE messages SET mood = 'calm' WHERE topic = '';
INSERT INTO moods (name) SELECT DISTINCT topic FROM messages;
"""
    assert not_additions(Migration(version=99, name="planted", sql=added)) == []


def _look_around(store: PostgresStore, dsn: str, schema: str) -> None:
    """Make it do the periodic work of a server, which is due every ten seconds."""
    engine = store.store.engine
    assert isinstance(engine, PostgresEngine)
    with connected(dsn, schema) as connection:
        engine.look_around(connection)
