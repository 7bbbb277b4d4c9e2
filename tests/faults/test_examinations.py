"""A database is examined next to its server: by a process with the lowest priority."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from conformance.promises.given import an_office, put_message
from machine import PATIENCE
from postroom.contracts.errors import StoreCorrupt, StoreUnavailable
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.apart import Apart

READERS = 2


async def held(number: int) -> list[psutil.Process]:
    """Return the examining processes, as soon as there are this many, suspended at their current step."""
    async with asyncio.timeout(PATIENCE):
        while len(found := [one for one in psutil.Process().children() if _examines(one)]) < number:
            await asyncio.sleep(0)
    return found


def _examines(child: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        if "faults" in child.cmdline():
            child.suspend()
            return True
    return False


async def test_those_who_examine_keep_nobody_waiting_who_reads_or_writes(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    looks = [asyncio.create_task(sqlite_store.check()) for _ in range(READERS)]
    children = await held(READERS)
    async with asyncio.timeout(PATIENCE):
        await sqlite_store.write(lambda tx: put_message(tx, here.ada, [here.ben]))
        assert len(await sqlite_store.read(lambda tx: tx.project_messages(here.project.id, limit=9))) == 1
    for child in children:
        child.resume()
    assert await asyncio.gather(*looks) == [[], []]


async def test_an_examination_whose_process_ends_is_a_failure_and_no_good_news(
    sqlite_store: SqliteStore,
) -> None:
    look = asyncio.create_task(sqlite_store.check())
    [child] = await held(1)
    child.kill()
    with pytest.raises(StoreUnavailable, match="ended with exit code -9"):
        await look
    look = asyncio.create_task(sqlite_store.check())
    [child] = await held(1)
    look.cancel()
    child.resume()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert not child.is_running()


async def test_a_process_that_cannot_be_begun_is_a_failure_of_its_own_kind(
    sqlite_store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptors are left, no process can be started, or an upgrade removed Python."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(StoreUnavailable, match="cannot start a process: No such file"):
        await sqlite_store.check()


async def test_what_is_in_the_log_alone_is_examined_and_stays_there(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    await sqlite_store.write(lambda tx: put_message(tx, here.ada, [here.ben]))
    await sqlite_store.settle()  # the search index is updated after the answer
    log = Path(f"{sqlite_store.path}-wal")
    size = log.stat().st_size
    assert await sqlite_store.check() == []
    assert log.stat().st_size == size > 0


async def test_a_database_that_cannot_be_read_is_told_as_by_a_reader(
    sqlite_store: SqliteStore, tmp_path: Path
) -> None:
    (tmp_path / "no.db").write_bytes(b"no database at all" * 1_000)
    with pytest.raises(StoreCorrupt, match="is damaged"):
        await Apart().faults(tmp_path / "no.db")
