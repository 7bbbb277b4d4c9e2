"""Run as a separate process: a server that writes a row for each step of work that it has a lease of."""

import asyncio
import sys
import time
from datetime import timedelta

from postroom.contracts.errors import PostroomError, StaleClaim
from postroom.contracts.outbox import OutboxDraft
from postroom.leases import Leases
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.store import Transaction

LENGTH = timedelta(seconds=3)
WORK, KIND = "work", "step"


async def work(dsn: str, schema: str, name: str) -> None:
    store = (await asyncio.to_thread(PostgresStore.open, dsn, schema=schema, readers=1)).store
    leases = Leases(store, name, {}, length=LENGTH)
    leases.want(WORK)
    async with leases.serving():
        print("serving", flush=True)
        while True:
            if leases.holds(WORK):
                try:
                    await store.write(leases.guarded(WORK, lambda tx: step(tx, name)))
                except StaleClaim:
                    print("refused", flush=True)
                except PostroomError:
                    pass
            await asyncio.sleep(0.01)


def step(tx: Transaction, name: str) -> None:
    [fence] = [one.fence for one in tx.leases.listed() if one.name == WORK]
    payload = {"server": name, "fence": fence}
    tx.outbox.enqueue((OutboxDraft(kind=KIND, target="t", payload=payload),))


def set_clock_wrong() -> None:
    """Set this machine's clock five seconds fast in one second and five slow in the next."""
    right = time.time_ns

    def wrong() -> int:
        return right() + (5 if right() // 1_000_000_000 % 2 else -5) * 1_000_000_000

    time.time_ns = wrong


if __name__ == "__main__":
    if "wrong clock" in sys.argv:
        set_clock_wrong()
    asyncio.run(work(*sys.argv[1:4]))
