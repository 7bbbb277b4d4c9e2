"""A backup is a whole, consistent database or nothing, made while work goes on."""

import asyncio
import stat
from pathlib import Path

import pytest

from postroom.contracts.errors import StoreReadOnly
from postroom.stores.sqlite import SqliteStore
from postroom.testing.conformance.given import Office, an_office, put_message

PATIENCE = 60
ENOUGH = 2_000
"""More messages than are written meanwhile, except on a machine where a copy takes very long: each makes it longer."""


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
        for _ in range(ENOUGH):
            if done.is_set():
                break
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
