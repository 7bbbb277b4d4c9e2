"""Run as a separate process on a tiny disk: fills it, frees it, continues, and prints its observations as JSON."""

import asyncio
import json
import sys
from pathlib import Path

from conformance.promises.given import Office, an_office, put_message
from postroom.contracts.errors import StoreFull
from postroom.stores.sqlite import SqliteStore

ENOUGH = 10_000


async def send(store: SqliteStore, here: Office) -> int | None:
    """Send one message; None when the disk is full."""
    try:
        return await store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="plum " * 1_000).id)
    except StoreFull:
        return None


async def fill_free_and_go_on(folder: Path) -> dict[str, object]:
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(256 * 1024))
    store = await asyncio.to_thread(SqliteStore.open, folder / "postroom.db", purpose="filling")
    here = await an_office(store)
    sent: list[int] = []
    for _ in range(ENOUGH):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(send(store, here)) for _ in range(4)]
        sent += [message_id for task in tasks if (message_id := task.result()) is not None]
        if any(task.result() is None for task in tasks):
            break
    ballast.unlink()
    afterwards = await send(store, here)
    found = await store.read(
        lambda tx: [one.id for one in tx.project_messages(here.project.id, limit=ENOUGH)]
    )
    wrong = await store.check()
    await asyncio.to_thread(store.close)
    return {"sent": sent, "afterwards": afterwards, "found": found, "wrong": wrong}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(fill_free_and_go_on(Path(sys.argv[1])))))
