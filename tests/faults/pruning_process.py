"""Run as a separate process on a small disk: deletes by rules while the disk is full, and prints its observations."""

import asyncio
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

from conformance.promises.given import Office, an_office, put_message
from postroom.app.config import Settings
from postroom.app.retention import Retention
from postroom.contracts.errors import StoreFull
from postroom.contracts.mail import KeepRule
from postroom.stores.mail.access import MailWrites
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

OLD, NEW = 600, 5
TOGETHER = 20
"""Messages of one change: the log of as many changes would need a larger disk."""


class AtOnce:
    """A timer that never waits."""

    async def sleep(self, milliseconds: int) -> None:
        """Yield to other tasks."""
        await asyncio.sleep(0)


def put_some(tx: MailWrites, here: Office) -> None:
    """Store some messages that are old."""
    for _ in range(TOGETHER):
        put_message(tx, here.ada, [here.ben], body="plum " * 600)


def fill(disk: Path) -> Path:
    """Leave nothing of the disk free."""
    filler, free = disk / "filler", os.statvfs(disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize))
    return filler


async def deleted(retention: Retention) -> str | int:
    """Delete what no rule keeps; return how many went, or why not all."""
    try:
        return await retention.messages()
    except StoreFull as error:
        return error.code


async def prune(disk: Path, reserve: int) -> dict[str, object]:
    """Reserve a log as the server does, fill the disk, delete, then free it and delete the rest."""
    clock, path = ManualClock(), disk / "postroom.db"
    store = await asyncio.to_thread(SqliteStore.open, path, clock=clock)
    here = await an_office(store)
    for _ in range(OLD // TOGETHER):
        await store.write(lambda tx: put_some(tx, here))
    clock.advance(timedelta(days=9))
    now = clock.now()
    kept = [
        (await store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="plum", now=now))).id
        for _ in range(NEW)
    ]
    await store.settle()
    await asyncio.to_thread(store.close)  # so that all of it is in the file, and the log is gone
    store = await asyncio.to_thread(SqliteStore.open, path, clock=clock, log_reserve=reserve)
    rule = KeepRule(project=None, topic=None, thread=None, keep=timedelta(days=1), unread_stays=False)
    retention = Retention(Settings(data_dir=disk), store, [rule], timer=AtOnce())
    filler = await asyncio.to_thread(fill, disk)
    seen: dict[str, object] = {"full": await deleted(retention)}
    filler.unlink()
    seen["freed"] = await deleted(retention)
    found = await store.read(lambda tx: [one.id for one in tx.project_messages(here.project.id, limit=9_999)])
    seen |= {"kept": found == kept, "left": len(found), "wrong": await store.check()}
    await asyncio.to_thread(store.close)
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(prune(Path(sys.argv[1]), int(sys.argv[2])))))
