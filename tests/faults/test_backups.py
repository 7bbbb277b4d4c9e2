"""Backups on a timer: one a day whatever the clock does, few enough, and never at the cost of mail."""

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from conformance.promises.given import an_office, put_message
from machine import PATIENCE
from postroom.app.backups import Backups, told_of_backups
from postroom.app.config import Settings
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import StoreUnavailable, WrongStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.apart_process import NICENESS
from postroom.testing import ManualClock

pytestmark = pytest.mark.long

DAY = timedelta(days=1)
LARGE = 3 << 20


def backups(tmp_path: Path, store: SqliteStore, clock: ManualClock, **more: object) -> Backups:
    given = {name: more.pop(name) for name in ("backup_interval", "backup_keep") if name in more}
    return Backups(Settings(data_dir=tmp_path, **given), store, clock, timer=clock, **more)  # type: ignore[arg-type]


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "backups").glob("*") if path.suffix != ".sha256")


async def grow(store: SqliteStore) -> None:
    """Make the database larger than one piece of a copy."""
    await store.write(lambda tx: tx.insert_blob("a" * 64, bytes(12 << 20)))


async def until(clock: ManualClock, sleepers: int = 1) -> None:
    """Return when the timer sleeps again."""
    async with asyncio.timeout(PATIENCE):
        while clock.sleeping < sleepers:
            await asyncio.sleep(0)


async def test_the_first_one_is_made_a_minute_after_the_start_and_then_one_a_day(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    here = await an_office(sqlite_store)
    await sqlite_store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="plum"))
    timed = backups(tmp_path, sqlite_store, clock)
    timed.start()
    await until(clock)
    clock.advance(timedelta(seconds=59))
    assert (clock.sleeping, files(tmp_path)) == (1, [])
    clock.advance(timedelta(seconds=1))
    await until(clock)
    (first,) = files(tmp_path)
    for _ in range(143):
        clock.advance(timedelta(minutes=10))
        await until(clock)
    assert files(tmp_path) == [first]
    clock.advance(timedelta(minutes=10))
    await until(clock)
    assert len(files(tmp_path)) == 2
    await timed.stop()
    copy = await asyncio.to_thread(SqliteStore.open, tmp_path / "backups" / first)
    found = await copy.read(lambda tx: tx.project_messages(here.project.id, limit=9))
    assert [one.body_md for one in found] == ["plum"]
    await asyncio.to_thread(copy.close)


async def at_work(made: "asyncio.Task[object]", work: str = "read_back") -> psutil.Process:
    """Return the process with this work, when it has started."""
    async with asyncio.timeout(PATIENCE):
        while True:
            assert not made.done()
            for child in psutil.Process().children():
                with suppress(psutil.NoSuchProcess):
                    if work in child.cmdline():
                        return child
            await asyncio.sleep(0)


async def test_a_backup_is_read_back_by_a_process_of_low_priority_and_without_it_there_is_no_backup(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    timed = backups(tmp_path, sqlite_store, clock)
    await grow(sqlite_store)
    first = await timed.make("first")
    made = asyncio.create_task(timed.make("second"))
    child = await at_work(made)
    async with asyncio.timeout(PATIENCE):
        while child.nice() < NICENESS:
            await asyncio.sleep(0)
    child.kill()
    with pytest.raises(StoreUnavailable, match="ended with exit code -9"):
        await made
    assert files(tmp_path) == [first.path.name]
    made = asyncio.create_task(timed.make("second"))
    child = await at_work(made)
    made.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made
    assert (child.is_running(), files(tmp_path)) == (False, [first.path.name])
    await timed.make("second")
    assert files(tmp_path) == [first.path.name, "second.db"]


async def test_after_a_restart_the_next_one_comes_when_the_newest_is_a_day_old(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    await backups(tmp_path, sqlite_store, clock).round()
    clock.advance(timedelta(hours=23, minutes=55))
    restarted = backups(tmp_path, sqlite_store, clock)
    assert await restarted.round() == milliseconds(timedelta(minutes=5))
    assert len(files(tmp_path)) == 1
    clock.advance(timedelta(minutes=5))
    await restarted.round()
    assert len(files(tmp_path)) == 2


async def test_as_many_are_kept_as_is_said_and_what_a_person_made_stays(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    timed = backups(tmp_path, sqlite_store, clock, backup_keep=2)
    folder = tmp_path / "backups"
    folder.mkdir()
    theirs = ("postroom-2001.db", "daily.db", "daily-2001-02-30T000000000Z.db", "notes.txt")
    for name in theirs:
        (folder / name).write_text("theirs")
        os.utime(folder / name, (1_600_000_000, 1_600_000_000))  # older than all that follows
    made = []
    for _ in range(4):
        await timed.round()
        made.append(max(name for name in files(tmp_path) if name not in theirs))
        clock.advance(DAY)
    assert files(tmp_path) == sorted([*theirs, *made[-2:]])


async def test_a_timer_that_is_off_does_nothing(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    timed = backups(tmp_path, sqlite_store, clock, backup_interval=timedelta(0))
    timed.start()
    await asyncio.sleep(0)
    assert clock.sleeping == 0
    assert (await timed.state()).interval_ms == 0
    await timed.stop()


async def test_a_database_that_is_gone_is_told_as_gone(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    (tmp_path / "postroom.db").unlink()
    with pytest.raises(WrongStore, match=r"postroom.db is missing"):
        await backups(tmp_path, sqlite_store, clock).make("first")


async def test_without_room_for_twice_the_database_nothing_is_written(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    await grow(sqlite_store)
    log = tmp_path / "postroom.db-wal"
    needed = 2 * ((tmp_path / "postroom.db").stat().st_size + log.stat().st_size)
    room = [needed - 1]
    timed = backups(tmp_path, sqlite_store, clock, free=lambda _: room[0])
    assert await timed.round() == milliseconds(timedelta(minutes=5))
    state = await timed.state()
    assert state.failure is not None
    assert (state.failure.code, state.tries, files(tmp_path)) == ("store_full", 1, [])
    size = (tmp_path / "postroom.db").stat().st_size
    assert (
        f"{needed} bytes of free space, twice the size of the database ({size}) and its log ({log.stat().st_size})"
        in (state.failure.message)
    )
    assert state.failure.remedy == f"free space on the disk of {tmp_path / 'backups'}", (
        "there is none to remove"
    )
    room[0] = needed
    await timed.round()
    assert ((await timed.state()).failure, len(files(tmp_path))) == (None, 1)


async def test_tries_after_a_failure_come_after_pauses_that_grow(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    timed = backups(tmp_path, sqlite_store, clock, free=lambda _: 0)
    pauses = [await timed.round() // 60_000 for _ in range(9)]
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 360, 360]


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Make the system refuse to write files of this process beyond a size, like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_copy_that_fails_midway_leaves_nothing_and_comes_later(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    await grow(sqlite_store)
    timed = backups(tmp_path, sqlite_store, clock)
    with no_file_longer_than(LARGE):
        await timed.round()
    state = await timed.state()
    assert (state.tries, files(tmp_path)) == (1, [])
    assert await sqlite_store.check() == []
    await timed.round()
    assert (len(files(tmp_path)), (await timed.state()).failure) == (1, None)


async def test_a_database_that_is_damaged_is_not_kept_as_a_good_copy(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    await grow(sqlite_store)
    with closing(sqlite3.connect(tmp_path / "postroom.db")) as other:
        other.execute("PRAGMA writable_schema = ON")
        other.execute("UPDATE sqlite_schema SET rootpage = 3 WHERE name = 'recipients_unread'")
        other.commit()
    timed = backups(tmp_path, sqlite_store, clock)
    await timed.round()
    state = await timed.state()
    assert state.failure is not None
    assert (state.failure.code, files(tmp_path)) == ("store_corrupt", [])


async def test_a_server_killed_during_the_copy_leaves_no_backup_and_the_next_one_tidies_up(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = await asyncio.to_thread(SqliteStore.open, tmp_path / "postroom.db", clock=clock)
    await grow(store)
    await asyncio.to_thread(store.close)
    folder = tmp_path / "backups"
    folder.mkdir()
    target = folder / "daily-2023-11-14T221300000Z.copy"
    program = [sys.executable, str(Path(__file__).with_name("copying_process.py"))]
    killed = await asyncio.to_thread(
        subprocess.run, [*program, str(tmp_path / "postroom.db"), str(target)], timeout=PATIENCE, check=False
    )
    assert killed.returncode == -9
    assert f"{target.name}.partial" in files(tmp_path)
    digest = folder / "daily-2023-11-14T221300000Z.db.sha256"  # a kill before the copy got its name leaves it
    digest.write_text("0  daily-2023-11-14T221300000Z.db\n")
    assert target.name not in files(tmp_path)
    store = await asyncio.to_thread(SqliteStore.open, tmp_path / "postroom.db", clock=clock)
    timed = backups(tmp_path, store, clock)
    assert (await timed.state()).newest is None
    await timed.round()
    assert files(tmp_path) == ["daily-2023-11-14T221320000Z.db"]
    assert not digest.exists()
    await asyncio.to_thread(store.close)


@pytest.mark.parametrize("jump", [timedelta(days=400), timedelta(days=-400)])
async def test_a_clock_that_jumps_costs_one_backup_more_and_none_of_those_before(
    jump: timedelta, sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    timed = backups(tmp_path, sqlite_store, clock, backup_keep=3)
    for _ in range(3):
        await timed.round()
        clock.advance(DAY)
    before = files(tmp_path)
    clock.advance(jump)
    await timed.round()
    await timed.round()
    assert len(set(files(tmp_path)) - set(before)) == 1
    clock.advance(-jump)
    await timed.round()
    assert set(before[-2:]) <= set(files(tmp_path))
    state = await timed.state()
    assert state.age_ms == 0


async def test_messages_are_sent_while_a_copy_is_made(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    await grow(sqlite_store)
    here = await an_office(sqlite_store, "second")
    timed = backups(tmp_path, sqlite_store, clock)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        copying = group.create_task(timed.round())
        sent = 0
        while not copying.done():
            await sqlite_store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="plum"))
            sent += 1
    assert sent > 1
    assert (await timed.state()).failure is None


def cut(backup: Path) -> None:
    os.truncate(backup, backup.stat().st_size - 1)


def emptied(backup: Path) -> None:
    os.truncate(backup, 0)


def scribbled(backup: Path) -> None:
    content = bytearray(backup.read_bytes())
    content[4096 : 3 * 4096] = bytes(2 * 4096)
    backup.write_bytes(content)


def flipped(backup: Path) -> None:
    """Change a byte of a page that no index and no check of SQLite covers."""
    content = bytearray(backup.read_bytes())
    content[content.index(b"plum pudding")] ^= 4
    backup.write_bytes(content)


async def test_a_backup_that_cannot_be_restored_is_found_by_whoever_examines_them(
    sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    here = await an_office(sqlite_store)
    await sqlite_store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="plum pudding"))
    for spoil, is_seen_at_once in ((cut, True), (emptied, True), (scribbled, False), (flipped, False)):
        timed = backups(tmp_path, sqlite_store, clock)
        made = await timed.make("postroom-2023-11-14T221320000Z")
        for full in (False, True):
            state = await timed.check_backups(full=full)
            assert (state.newest, state.damaged) == (made, ()), spoil.__name__
        spoil(made.path)
        seen = [(await timed.check_backups(full=full)).damaged for full in (False, True)]
        assert seen == [(made.path.name,) if is_seen_at_once else (), (made.path.name,)], spoil.__name__
        found = told_of_backups(await timed.check_backups(full=True))
        assert (found.state, made.path.name in found.detail) == ("failed", True)
        assert "there is no backup" in found.detail, "a damaged backup does not count as the newest"
        await asyncio.to_thread(shutil.rmtree, timed.folder)
