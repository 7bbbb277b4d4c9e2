"""Run as a separate process on a tiny disk: has writes refused, frees space, and prints the results of probes as JSON."""

import asyncio
import json
import os
import sys
from pathlib import Path

from conformance.promises.given import Office, an_office, put_message
from postroom.contracts.errors import StoreFull
from postroom.stores.sqlite import SqliteStore

ENOUGH = 1_000
LOOKS = 5


async def sent(store: SqliteStore, here: Office, size: int) -> str:
    """Send one message and return the outcome."""
    try:
        await store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="p" * size))
    except StoreFull as error:
        return error.code
    return "ok"


async def probed(store: SqliteStore) -> str:
    """Check whether the store writes and return its report."""
    try:
        await store.probe()
    except StoreFull as error:
        return error.code
    return "ok"


def fill(disk: Path, left: int) -> Path:
    """Leave this many bytes of the disk free."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - left))
    return filler


async def refuse_and_go_on(disk: Path, size: int, left: int) -> dict[str, object]:
    """Leave some room, write until no message of this size fits, then free all of it."""
    store = await asyncio.to_thread(SqliteStore.open, disk / "postroom.db", purpose="refusing")
    here = await an_office(store)
    seen: dict[str, object] = {"before": await probed(store)}
    filler = await asyncio.to_thread(fill, disk, left)
    for _ in range(ENOUGH):
        if await sent(store, here, size) != "ok":
            break
    looks, small = [], []
    for _ in range(LOOKS):
        looks.append(await probed(store))
        small.append(await sent(store, here, 1))
    seen |= {"looks": looks, "small": small, "again": await sent(store, here, size)}
    seen["later"] = [(await probed(store), await sent(store, here, size))[0] for _ in range(LOOKS)]
    filler.unlink()
    seen["freed"] = [await probed(store), await sent(store, here, size), await probed(store)]
    seen["files"] = sorted(path.name for path in disk.iterdir())
    await asyncio.to_thread(store.close)
    return seen


if __name__ == "__main__":
    arguments = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sys.stdout.write(json.dumps(asyncio.run(refuse_and_go_on(*arguments))))
