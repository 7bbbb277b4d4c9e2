"""Ten thousand jobs in one night: so many a second and no more, and a crash in the middle doubles nothing.

    python nightly_batch.py 2026-11-24 [jobs] [jobs a second] [address of the database]

Kill it whenever you like and start it again: what is done stays done, also the steps of a job that is not.
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from postroom import MailboxConfig
from postroom.contracts.limits import Limit, LimitScope
from postroom.embedded import Item, Mailbox, Run


async def job(run: Run) -> None:
    """Ask for the price of a page, and enter it into the report of the night."""
    night, page = run.input(tuple[str, int])
    price = await run.step("price", price_of, page)
    await run.step("enter", enter, Path(f"report-{night}"), page, price)


async def price_of(page: int) -> int:
    """Ask the provider, who takes so many questions a second."""
    await asyncio.sleep(0.001)
    return page * 100


def enter(report: Path, page: int, price: int) -> None:
    """Write one line. After a crash before the step was stored it is called again: with the same effect."""
    report.mkdir(exist_ok=True)
    (report / f"{page}.txt").write_text(f"page {page}: {price}\n")


async def main(
    night: str, jobs: int = 10_000, a_second: int = 500, url: str = "sqlite:///nightly.db"
) -> None:
    """Enqueue the jobs of the night, or the rest of them, and wait until all are done."""
    provider = Limit(per=LimitScope.KEY, starts=a_second, period=timedelta(seconds=1))
    config = MailboxConfig(limits=(provider,))  # the place for a daily budget: budgets=(Budget(...),)
    async with Mailbox.open(url, job, config=config) as mailbox:
        handles = await mailbox.enqueue_many(
            (Item(f"page-{page}", (night, page), key=night, limit_key="provider") for page in range(jobs)),
            progress=lambda done, of: print(f"enqueued {done} of {of}", flush=True),
        )
        for number, handle in enumerate(handles, start=1):
            await handle.result()
            if number % 100 == 0 or number == jobs:
                print(f"done {number} of {jobs}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:5]))
