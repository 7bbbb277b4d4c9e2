"""Run as a separate process: writes messages without end and prints the id of each acknowledged message."""

import asyncio
import sys
from pathlib import Path

from conformance.promises.given import an_office, put_message
from postroom.stores.sqlite import SqliteStore

CALLERS = 8


async def write_for_ever(store: SqliteStore) -> None:
    here = await an_office(store, f"round-{sys.argv[2]}")

    async def send() -> None:
        while True:
            message = await store.write(
                lambda tx: put_message(tx, here.ada, [here.ben, here.cyd], body="plum pear")
            )
            sys.stdout.write(f"{message.id}\n")
            sys.stdout.flush()

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(send())


if __name__ == "__main__":
    asyncio.run(
        write_for_ever(SqliteStore.open(Path(sys.argv[1]), purpose="to be killed", log_reserve=1 << 20))
    )
