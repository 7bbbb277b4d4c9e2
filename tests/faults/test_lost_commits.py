"""A file of SQLite that lacks committed changes which were acknowledged is refused, and any other is taken."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from mail_room import a_room
from postroom.contracts.errors import WrongStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from sqlite_files import open_new

NAME = "postroom.db"


def sent(store: SqliteStore, clock: ManualClock, *subjects: str) -> None:
    async def send() -> None:
        room = a_room(store, clock)
        await room.open("Ada", "Ben")
        for subject in subjects:
            await room.send("Ada", "Ben", subject=subject)

    asyncio.run(send())


def copied(database: Path, folder: Path, *endings: str) -> Path:
    """Copy files of an open database, as a kill leaves them; return the copy of the database."""
    folder.mkdir(exist_ok=True)
    for ending in ("", *endings):
        shutil.copy(f"{database}{ending}", folder / f"{NAME}{ending}")
    return folder / NAME


def subjects_in(database: Path, clock: ManualClock) -> list[str]:
    SqliteStore.open(database, clock=clock).close()
    with closing(sqlite3.connect(database)) as rows:
        return [row[0] for row in rows.execute("SELECT subject FROM messages ORDER BY id")]


def fold(database: Path) -> None:
    """Write the log to the database, as a shell that is closed does."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("SELECT count(*) FROM messages").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.fixture
def left(tmp_path: Path, clock: ManualClock) -> Path:
    """The files of a process that was killed after it had acknowledged a message, in a separate folder."""
    database = tmp_path / NAME
    store = open_new(database, clock)
    sent(store, clock, "kept")
    found = copied(database, tmp_path / "left", "-wal", ".generation")
    store.close()
    return found


def test_a_log_that_is_there_is_taken(left: Path, clock: ManualClock) -> None:
    assert subjects_in(left, clock) == ["kept"]


def test_a_lost_log_is_told_and_nothing_is_changed(left: Path, clock: ManualClock) -> None:
    log = left.with_name(f"{NAME}-wal")
    log.rename(left.with_name("moved"))
    for _ in range(2):
        with pytest.raises(WrongStore, match="lacks committed changes") as refused:
            SqliteStore.open(left, clock=clock)
        assert f"{NAME}-wal" in refused.value.remedy
        assert f"{NAME}.generation" in refused.value.remedy
    left.with_name("moved").rename(log)
    assert subjects_in(left, clock) == ["kept"]


def test_a_log_that_another_program_wrote_to_the_database_is_not_missed(
    left: Path, clock: ManualClock
) -> None:
    fold(left)
    left.with_name(f"{NAME}-wal").unlink(missing_ok=True)
    assert subjects_in(left, clock) == ["kept"]


def test_commits_after_a_checkpoint_are_missed_too(tmp_path: Path, clock: ManualClock) -> None:
    """A checkpoint may come at any moment: a database without its log is refused, or has all messages."""
    database = tmp_path / NAME
    open_new(database, clock).close()
    store = SqliteStore.open(database, clock=clock)
    sent(store, clock, *map(str, range(600)))  # enough rows for a checkpoint in between
    for number in range(600, 650):
        sent(store, clock, str(number))
        found = copied(database, tmp_path / f"left-{number}", ".generation")
        try:
            newest = subjects_in(found, clock)[-1]
        except WrongStore:
            break
        assert newest == str(number)
    store.close()
    with pytest.raises(WrongStore, match="lacks committed changes"):
        SqliteStore.open(found, clock=clock)


def test_an_older_copy_in_the_place_of_a_database_is_told(tmp_path: Path, clock: ManualClock) -> None:
    database = tmp_path / NAME
    store = open_new(database, clock)
    sent(store, clock, "first")
    store.close()
    older = copied(database, tmp_path / "older")
    store = SqliteStore.open(database, clock=clock)
    sent(store, clock, "second")
    store.close()
    older.replace(database)
    with pytest.raises(WrongStore, match="older copy"):
        SqliteStore.open(database, clock=clock)


@pytest.mark.parametrize("begin_anew", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_database_that_was_deleted_or_emptied_is_begun_anew(
    tmp_path: Path, clock: ManualClock, begin_anew: Callable[[Path], object]
) -> None:
    database = tmp_path / NAME
    store = open_new(database, clock)
    sent(store, clock, "first")
    store.close()
    begin_anew(database)
    assert subjects_in(database, clock) == []


def test_a_database_of_an_earlier_release_is_taken(tmp_path: Path, clock: ManualClock) -> None:
    database = tmp_path / NAME
    store = open_new(database, clock)
    sent(store, clock, "first")
    store.close()
    database.with_name(f"{NAME}.generation").unlink()
    with closing(sqlite3.connect(database)) as rows:
        rows.execute("PRAGMA user_version = 0")
    for _ in range(2):
        assert subjects_in(database, clock) == ["first"]
