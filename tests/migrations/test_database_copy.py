"""A store that is moved to the other engine, and back: every row is unchanged, and work continues with the next number."""

import asyncio
import itertools
import json
import sqlite3
import stat
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest

from e2e.commands import run_here
from e2e.running import plain_environment
from mail_room import Room, a_room, furnish
from migrations.copying import list_tables
from postgres_server import PostgresServer, missing_postgres
from postroom.cli.exit_codes import REFUSED, TEMPORARY, exit_code
from postroom.contracts import progress
from postroom.contracts.errors import (
    InvalidRecord,
    SchemaTooNew,
    StateError,
    StoreCorrupt,
    StoreHeld,
    StoreUnavailable,
    WrongStore,
)
from postroom.contracts.leases import SERVER
from postroom.executors.processes.process_runner import is_gone
from postroom.leases import Leases
from postroom.stores import database_copy as sides
from postroom.stores import moving
from postroom.stores.mail import search_index
from postroom.stores.postgres.connection import quoted
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.connection import add_functions
from postroom.stores.sqlite.moving import shared_tables
from postroom.stores.stores import Stores
from postroom.testing import ManualClock

pytestmark = pytest.mark.long

STORE_OF_A_SERVER = Path(__file__).with_name("store_of_a_server.tar.xz")
"""A store in its oldest schema, with runs, chats and files."""
MAKING = ("changing the schema", "copying the database")
"""The progress during the copy."""
Postgres = tuple[str, str]


@pytest.fixture
def file(tmp_path: Path, clock: ManualClock) -> Path:
    """A store with mail, reservations and an active agent."""
    path = tmp_path / "postroom.db"
    with closing(SqliteStore.open(path, clock=clock, purpose="test")) as store:
        asyncio.run(_fill(a_room(store, clock)))
        asyncio.run(store.identify("11" * 16))
    return path


async def _fill(room: Room) -> None:
    await furnish(room)
    for number in range(25):
        await room.send(
            "Ada", "Ben", "Cyd", body_md=f"The lamp {number} is lit; ünïcode, tabs\tand \\slashes 'too'."
        )
    await room.call("acknowledge_message", agent_name="Ben", message_id=4)


@pytest.fixture
def schema(postgres_dsn: str, a_schema: str) -> Postgres:
    return postgres_dsn, a_schema


def copied(source: sides.Place, target: sides.Place, told: Callable[..., None] = lambda *_: None) -> Any:
    with progress.watched(told):
        return sides.copied(source, target, now=7, is_gone=is_gone)


def rows_of(file: Path) -> dict[str, Any]:
    """Return all rows by table except those of an index, which is filled again."""
    return {name: found for name, found in list_tables(file).items() if name != "threads"}


def opened(place: sides.Place, clock: ManualClock) -> Stores:
    if isinstance(place, Path):
        return SqliteStore.open(place, clock=clock, purpose="test")
    return PostgresStore.open(place[0], schema=place[1], clock=clock)


async def _searched(room: Room) -> list[str]:
    await room.store.settle()
    hits = (await room.call("search_messages", query="lamp unicode", limit=100))["hits"]
    return [one["subject"] + str(one["id"]) for one in hits]


def goes_on(place: sides.Place, clock: ManualClock) -> tuple[list[str], int]:
    """Return the findings, and the number of the next message."""
    with closing(opened(place, clock)) as store:
        room = a_room(store, clock)
        return asyncio.run(_searched(room)), asyncio.run(room.send("Ada", "Ben"))


def test_there_and_back_every_row_is_as_it_was_and_numbers_go_on(
    file: Path, schema: Postgres, clock: ManualClock, tmp_path: Path
) -> None:
    before, back = rows_of(file), tmp_path / "back.db"
    there = copied(file, schema)
    again = copied(schema, back)
    assert there["rows"] == again["rows"] == {name: len(rows) for name, (_, rows) in before.items()}
    assert rows_of(file) == rows_of(back) == before
    for source, target in ((file, schema), (schema, back)):
        with pytest.raises(StateError, match="already contains this store"):
            copied(source, target)
    assert rows_of(back) == before
    assert stat.S_IMODE(back.stat().st_mode) == 0o600
    assert goes_on(schema, clock) == goes_on(back, clock) == goes_on(file, clock)
    assert list_tables(file)["threads"] == list_tables(back)["threads"]
    with closing(opened(back, clock)) as store:
        assert asyncio.run(store.check()) == []


def test_runs_chats_and_files_of_a_real_server_are_moved_too(
    schema: Postgres, clock: ManualClock, tmp_path: Path
) -> None:
    with tarfile.open(STORE_OF_A_SERVER) as packed:
        packed.extractall(tmp_path, filter="tar")
    file, back = tmp_path / "data" / "postroom.db", tmp_path / "back.db"
    with closing(opened(file, clock)) as store:
        asyncio.run(store.identify("22" * 16))
    before = rows_of(file)
    copied(file, schema)
    copied(schema, back)
    assert rows_of(back) == before
    filled = {name for name, (_, rows) in before.items() if rows}
    assert filled >= {
        "runs",
        "run_messages",
        "blobs",
        "chat_sessions",
        "inbound_messages",
        "outbox",
        "events",
    }


def test_a_number_that_was_given_is_given_to_no_other_message_after_a_move(
    file: Path, schema: Postgres, clock: ManualClock, tmp_path: Path
) -> None:
    """Also when that message was deleted, which only the index remembers."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE search_index_progress SET indexed_to = 500")
    copied(file, schema)
    copied(schema, tmp_path / "back.db")
    assert [goes_on(place, clock)[1] for place in (schema, tmp_path / "back.db")] == [501, 501]


@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_copy_that_is_cut_off_anywhere_goes_on_and_no_server_opens_it_meanwhile(
    direction: str,
    file: Path,
    schema: Postgres,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moving, "AT_ONCE", 5)
    monkeypatch.setattr(search_index, "_PAGE", 5)
    source: sides.Place = file
    target: sides.Place = schema
    if direction == "back":
        copied(file, schema)
        source, target = schema, tmp_path / "back.db"
    calls = 0
    while True:
        left = calls

        def told(doing: str, *_: int) -> None:
            nonlocal left
            if doing.startswith(MAKING):
                return
            if not left:
                raise KeyboardInterrupt
            left -= 1

        try:
            assert copied(source, target, told)["went_on"] is (calls > 0)
            break
        except KeyboardInterrupt:
            calls += 13
        with pytest.raises(WrongStore, match="is incomplete"):
            opened(target, clock)
    assert calls > 30
    assert goes_on(target, clock) == goes_on(source, clock)


@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_copy_that_ends_before_its_first_row_leaves_nothing_or_what_no_server_opens(
    direction: str, file: Path, schema: Postgres, clock: ManualClock, tmp_path: Path
) -> None:
    source: sides.Place = file
    target: sides.Place = schema
    if direction == "back":
        copied(file, schema)
        source, target = schema, tmp_path / "back.db"
    for cut_at in itertools.count(0, 277):
        _cut_off(lambda: copied(source, target, _first_row), cut_at)
        if _is_there(target):
            break
    assert cut_at > 277
    with pytest.raises(WrongStore, match="is incomplete"):
        opened(target, clock)
    assert copied(source, target)["went_on"]
    assert goes_on(target, clock) == goes_on(source, clock)


class _Cut(BaseException):
    """An effect without a handler."""


def _first_row(doing: str, *_: int) -> None:
    if not doing.startswith(MAKING):
        raise _Cut


def _cut_off(copying: Callable[[], object], at: int) -> None:
    """Cut a copy off at a call of the store's, counted from its start, or else at its first row."""
    left = at

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event == "c_call" and "/postroom/stores/" in frame.f_code.co_filename:
            left -= 1
            if left < 0:
                raise _Cut

    sys.setprofile(count)
    try:
        with pytest.raises(_Cut):
            copying()
    finally:
        sys.setprofile(None)


def _is_there(place: sides.Place) -> bool:
    if isinstance(place, Path):
        return place.exists()
    with psycopg.connect(place[0]) as session:
        [[found]] = session.execute("SELECT to_regclass(%s) IS NOT NULL", [_ledger(place)]).fetchall()
        return bool(found)


def _ledger(schema: Postgres) -> str:
    return f"{quoted(schema[1])}.schema_migrations"


def test_a_copy_that_is_refused_makes_no_target(
    file: Path, schema: Postgres, clock: ManualClock, tmp_path: Path
) -> None:
    back = tmp_path / "folder" / "back.db"
    copied(file, schema)
    with closing(opened(schema, clock)), pytest.raises(StoreHeld):
        copied(schema, back)
    with psycopg.connect(schema[0]) as session:
        session.execute(f"INSERT INTO {_ledger(schema)} VALUES (9999, 'of_tomorrow', '', 0)")
    with pytest.raises(SchemaTooNew):
        copied(schema, back)
    assert not back.parent.exists()


def test_what_a_copy_left_that_was_killed_is_overwritten_and_a_file_of_another_program_is_not(
    file: Path, schema: Postgres, tmp_path: Path
) -> None:
    back, other = tmp_path / "back.db", tmp_path / "other.db"
    back.with_name("back.db.partial").write_bytes(b"half a database")
    back.with_name("back.db.partial.lock").touch()  # which says that it is no stranger's
    back.touch()
    copied(file, schema)
    copied(schema, back)
    assert sorted(one.name for one in tmp_path.glob("back.db*")) == ["back.db", "back.db.lock"]
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE tides (height INTEGER)")
    with pytest.raises(StateError, match="to another program"):
        copied(schema, other)
    with closing(sqlite3.connect(other)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("tides",)]


def test_a_source_that_changed_after_a_cut_is_noticed_and_the_target_stays_shut(
    file: Path, schema: Postgres, clock: ManualClock
) -> None:
    def cut(doing: str, *_: int) -> None:
        if doing.startswith("comparing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(file, schema, cut)
    with closing(sqlite3.connect(file)) as connection, connection:
        add_functions(connection)
        connection.execute("UPDATE messages SET subject = 'another' WHERE id = 3")
    with pytest.raises(StoreCorrupt, match="a row of messages differs") as caught:
        copied(file, schema)
    assert caught.value.value == ["3"]
    with pytest.raises(WrongStore):
        opened(schema, clock)


def test_a_text_that_postgresql_cannot_hold_is_named_and_the_copy_goes_on_once_it_is_mended(
    file: Path, schema: Postgres
) -> None:
    for text in ("a\0b", "ab"):
        with closing(sqlite3.connect(file)) as connection, connection:
            add_functions(connection)
            connection.execute("UPDATE messages SET subject = ? WHERE id = 3", (text,))
        if "\0" in text:
            with pytest.raises(InvalidRecord, match=r"a NUL character, in the row \['3'\] of messages"):
                copied(file, schema)
        else:
            assert copied(file, schema)["went_on"]


def test_a_source_on_which_a_server_is_up_is_refused_whoever_holds_its_locks(
    file: Path, schema: Postgres, tmp_path: Path
) -> None:
    """As on a standby, where the locks of the primary's servers are not seen."""
    back = tmp_path / "back.db"
    copied(file, schema)
    with closing(PostgresStore.open(schema[0], schema=schema[1])) as store:
        asyncio.run(Leases(store.store, "mill/1", {"version": "0.9"}).renew())
    with pytest.raises(StoreHeld, match=r"(?m)^running servers use .*: mill/1 \(0.9\)$"):
        copied(schema, back)
    assert not back.exists()
    with closing(PostgresStore.open(schema[0], schema=schema[1])) as store:
        asyncio.run(_given_back(store))
    copied(schema, back)


async def _given_back(store: Stores) -> None:
    leases = Leases(store.store, "mill/1", {})
    await leases.renew()
    await leases.give_back(SERVER + leases.holder)


@pytest.mark.parametrize("is_target", [False, True])
def test_a_file_that_is_no_database_is_a_mistaken_name(
    file: Path, schema: Postgres, tmp_path: Path, is_target: bool
) -> None:
    notes = tmp_path / "notes.db"
    notes.write_text("Dear diary, " * 500)
    copied(file, schema)
    with pytest.raises(StateError, match=r"(?m)notes.db is not a SQLite database$") as refused:
        copied(*((schema, notes) if is_target else (notes, schema)))
    assert (exit_code(refused.value), refused.value.remedy) == (REFUSED, "choose the database file")
    assert [one.name for one in tmp_path.glob("notes*")] == ["notes.db"], "nothing was made beside it"


def test_what_cannot_be_a_side_of_a_copy_is_refused_and_nothing_is_changed(
    file: Path, schema: Postgres, clock: ManualClock, tmp_path: Path
) -> None:
    with closing(opened(schema, clock)) as store:
        with pytest.raises(StoreHeld):
            copied(file, schema)
        asyncio.run(a_room(store, clock).open())
    with pytest.raises(StateError, match="is not empty: "):
        copied(file, schema)
    with closing(opened(file, clock)), pytest.raises(StoreHeld):
        copied(file, schema)
    with pytest.raises(StateError, match="no database at"):
        copied(tmp_path / "none.db", schema)
    with pytest.raises(StateError, match="contains no store"):
        copied((schema[0], f"{schema[1]} none"), tmp_path / "back.db")
    assert not (tmp_path / "none.db").exists()
    assert len(list_tables(file)["messages"][1]) == 27


def test_the_command_says_what_it_would_do_does_it_and_shows_no_password(
    file: Path, schema: Postgres, tmp_path: Path
) -> None:
    environment = plain_environment(tmp_path)
    dsn = schema[0].replace("postgres@", "postgres:hunter2@")
    words = ("database", "copy", "--from", f"sqlite:{file}", "--to", dsn, "--schema", schema[1])
    trial = run_here(*words, "--dry-run", environment=environment)
    assert "would be copied" in trial.stdout
    assert trial.stdout.endswith("; the target is empty\n"), trial.stderr
    with psycopg.connect(schema[0]) as session:
        found = session.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema[1]]).fetchall()
        assert found == []
    done = run_here(*words, "--json", environment=environment)
    told = json.loads(done.stdout)
    assert (told["done"], told["rows"]["messages"]) == (True, 27), done.stderr
    refused = run_here(*words, "--json", environment=environment)
    assert refused.returncode != 0
    assert "hunter2" not in trial.stdout + trial.stderr + done.stdout + done.stderr + refused.stdout
    same = run_here(
        "database", "copy", "--from", f"sqlite:{file}", "--to", f"sqlite:{file}2", environment=environment
    )
    assert "both databases are of the same kind" in same.stderr


def test_every_text_of_a_key_is_ordered_by_bytes_on_postgresql(schema: Postgres, clock: ManualClock) -> None:
    """As SQLite orders it: a copy goes by the order of keys."""
    opened(schema, clock).close()
    with psycopg.connect(schema[0]) as session:
        found = session.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s"
            " AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'",
            [schema[1]],
        ).fetchall()
    keys = {(table.name, name) for table in shared_tables(1) for name in table.key}
    assert keys.isdisjoint(found)


@pytest.mark.parametrize("is_target", [True, False], ids=["target", "source"])
def test_a_copy_whose_postgresql_goes_away_ends_with_one_sentence_and_goes_on_later(
    file: Path, tmp_path: Path, is_target: bool
) -> None:
    if missing := missing_postgres():
        pytest.skip(missing)
    with PostgresServer() as server:
        server.start()
        place = (server.dsn, "postroom")
        if not is_target:
            copied(file, place)
        source, target = (file, place) if is_target else (place, tmp_path / "copied.db")

        def ends_it(what: str, *_: object) -> None:
            if what.startswith("copying messages") and server.running:
                server.kill()

        with pytest.raises(StoreUnavailable, match=r"^the copy is incomplete") as caught:
            copied(source, target, ends_it)
        assert "\n" not in caught.value.message
        assert exit_code(caught.value) == TEMPORARY
        server.start()
        assert copied(source, target)["went_on"]
