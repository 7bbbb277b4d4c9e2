"""A backup is a whole, consistent database or does not exist; it is made during other work."""

import asyncio
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from conformance.promises.given import Office, an_office, put_message
from machine import PATIENCE
from postroom.contracts.errors import InvalidPath, StateError, StoreFull, StoreReadOnly
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.connection import connect
from postroom.stores.sqlite.copying import back_up

HERE = Path(__file__).parent


async def send(store: SqliteStore, here: Office) -> None:
    await store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="plum " * 200))


async def test_a_backup_made_while_messages_are_written_is_consistent(
    sqlite_store: SqliteStore, tmp_path: Path
) -> None:
    here = await an_office(sqlite_store)
    for _ in range(200):
        await send(sqlite_store, here)
    target = tmp_path / "copy.db"
    done = asyncio.Event()

    async def keep_writing() -> None:
        while not done.is_set():
            await send(sqlite_store, here)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(keep_writing())
        for _ in range(5):
            await sqlite_store.back_up(target)
        done.set()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    copy = await asyncio.to_thread(SqliteStore.open, target)
    assert await copy.check() == []
    ben = (await copy.read(lambda tx: tx.agents_by_id([here.ben.id])))[here.ben.id]
    events = await copy.read(lambda tx: tx.inbox_events(here.ben.id, after=0, limit=100_000))
    assert [entry.seq for entry in events] == list(range(1, ben.inbox_seq + 1))
    assert len(events) >= 200
    await asyncio.to_thread(copy.close)


async def test_a_backup_that_cannot_be_written_leaves_its_target_as_it_was(
    sqlite_store: SqliteStore, tmp_path: Path
) -> None:
    await an_office(sqlite_store)
    with pytest.raises(StoreReadOnly):
        await sqlite_store.back_up(tmp_path / "missing" / "copy.db")
    target = tmp_path / "copy.db"
    target.mkdir()
    with pytest.raises(StoreReadOnly):
        await sqlite_store.back_up(target)
    assert sorted(entry.name for entry in tmp_path.glob("copy.db*")) == ["copy.db"]
    assert target.is_dir()


def test_what_a_killed_backup_left_goes_with_the_next_one_to_the_same_place(tmp_path: Path) -> None:
    database, target = tmp_path / "postroom.db", tmp_path / "to" / "monday.db"
    SqliteStore.open(database).close()
    target.parent.mkdir()
    program = [sys.executable, str(HERE / "copying_process.py"), str(database), str(target)]
    ended = subprocess.run(program, timeout=PATIENCE, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (target.parent / "monday.db.partial").exists()
    with closing(connect(database)) as connection:
        back_up(connection, target, is_read_back=True)
    assert [entry.name for entry in target.parent.iterdir()] == ["monday.db"]


@pytest.mark.parametrize("ending", [".partial", ".partial-journal"])
def test_a_file_of_somebody_else_is_left_alone(ending: str, tmp_path: Path) -> None:
    database, theirs = tmp_path / "postroom.db", tmp_path / f"monday.db{ending}"
    SqliteStore.open(database).close()
    theirs.write_text("half a download")
    with closing(connect(database)) as connection, pytest.raises(InvalidPath) as refused:
        back_up(connection, tmp_path / "monday.db")
    assert refused.value.value == str(theirs)
    assert theirs.read_text() == "half a download"
    assert sorted(entry.name for entry in tmp_path.glob("monday.db*")) == [theirs.name]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no such folder")
def test_a_folder_that_takes_no_files_is_not_told_as_another_backup(tmp_path: Path) -> None:
    database, target = tmp_path / "postroom.db", Path("/proc/monday.db")
    SqliteStore.open(database).close()
    with closing(connect(database)) as connection, pytest.raises(StoreReadOnly) as refused:
        back_up(connection, target)
    assert refused.value.remedy == "give the user of this process permission to write to /proc"


def test_a_full_disk_is_told_once_and_with_the_place_of_the_copy(tmp_path: Path) -> None:
    database, target = tmp_path / "postroom.db", tmp_path / "to" / "monday.db"
    SqliteStore.open(database).close()
    target.parent.mkdir()

    class Full(threading.Event):
        """Asked after a piece of the copy whether to stop, it fails as SQLite does without room."""

        def is_set(self) -> bool:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    with closing(connect(database)) as connection, pytest.raises(StoreFull) as refused:
        back_up(connection, target, stop=Full())
    assert refused.value.message == f"the disk is full: {target}: database or disk is full"
    assert refused.value.remedy == f"free space on the disk of {target.parent}, and try again"
    assert list(target.parent.iterdir()) == []


def test_what_another_backup_writes_is_left_alone(tmp_path: Path) -> None:
    database, target = tmp_path / "postroom.db", tmp_path / "monday.db"
    SqliteStore.open(database).close()
    refused = []

    class Meanwhile(threading.Event):
        """Asked after a piece of the copy whether to stop, it begins another."""

        def is_set(self) -> bool:
            with closing(connect(database)) as other, pytest.raises(StateError) as found:
                back_up(other, target)
            refused.append(found.value.message)
            return False

    with closing(connect(database)) as connection:
        back_up(connection, target, is_read_back=True, stop=Meanwhile())
    assert refused
    assert sorted(entry.name for entry in tmp_path.glob("monday.db*")) == ["monday.db"]
