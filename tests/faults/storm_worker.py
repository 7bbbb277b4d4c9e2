"""Run as a process of its own: a worker on PostgreSQL whose runs write into a history what they do, and when."""

import asyncio
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from dispatch_room import Deaf, done
from postroom.contracts.budgets import Budget, BudgetScope, BudgetWindow
from postroom.contracts.limits import Limit, LimitScope
from postroom.contracts.run_ports import RunStores
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.postgres.store import PostgresStore

LEASE_MS = 3_000
STEPS = 3


def config(at_once: int, budget: int) -> MailboxConfig:
    monthly = Budget(per=BudgetScope.ALL, window=BudgetWindow.MONTH, runs=budget)
    return MailboxConfig(
        lease_ms=LEASE_MS,
        lease_renewal_interval=timedelta(milliseconds=700),
        lease_retry_ms=100,
        sweep_interval=timedelta(milliseconds=500),
        poll_interval=timedelta(milliseconds=200),
        limits=(Limit(per=LimitScope.ALL, at_once=at_once),),
        budgets=(monthly,) if budget else (),
    )


class Writing(Deaf):
    """Makes some steps, each a line: what, run, thread, attempt, process, instant. One write is whole."""

    def __init__(self, history: Path) -> None:
        super().__init__()
        self._file = os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def execute(self, activation, sink):
        run = f"{activation.run_id} {activation.thread_id} {activation.attempt} {os.getpid()}"
        for _ in range(STEPS):
            self._say("step", run)
            await asyncio.sleep(0.01)
        self._say("end", run)
        return done(activation)

    def _say(self, what: str, run: str) -> None:
        os.write(self._file, f"{what} {run} {time.monotonic_ns()}\n".encode())


async def main(dsn: str, schema: str, history: Path, at_once: int, budget: int) -> None:
    while True:
        try:
            store = PostgresStore.open(dsn, schema=schema, readers=1)
            break
        except Exception as error:  # it is cut off at this moment
            sys.stderr.write(f"{error}\n")
    name = f"worker {os.getpid()}"
    runs, settings = RunStores(store.store), config(at_once, budget)
    async with Mailbox(Writing(history), runs, consumer_id=name, config=settings):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:6])))
