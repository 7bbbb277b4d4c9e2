"""Run as a separate process: a worker on PostgreSQL whose runs log their steps with times."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from postroom.contracts.limits import Budget, BudgetScope, BudgetWindow, Limit, LimitScope
from postroom.dispatch.config import MailboxConfig
from postroom.embedded import Mailbox, Run
from postroom.testing import ExecutionLog

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


async def main(dsn: str, schema: str, path: Path, at_once: int, budget: int) -> None:
    log = ExecutionLog(path)

    async def work(run: Run) -> str:
        for _ in range(STEPS):
            await asyncio.sleep(0.01)
            await log.step(run)
        return "done"

    while True:
        try:
            async with Mailbox.open(dsn, log.observed(work), config=config(at_once, budget), schema=schema):
                await asyncio.Event().wait()
        except Exception as error:  # it is cut off at this moment
            sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:6])))
