"""Run ten thousand jobs at a limited rate, with a daily budget. A crash does not run a finished job again.

    python nightly_batch.py 2026-11-24 [jobs] [jobs a second] [cents a day] [yes or no] [address of the database]

You can kill the program at any time and start it again; it does not repeat finished jobs. When the budget of
the day is used up, the program asks for more. Start it again with yes to grant the same budget again, or
with no to continue when the next day begins.
"""

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from postroom import Budget, BudgetScope, BudgetWindow, Item, Limit, LimitScope, Mailbox, MailboxConfig


async def job(run):
    night, page = run.input(tuple[str, int])
    await run.step("enter", enter, night, page, await run.step("price", price_of, run, page))


async def price_of(run, page):
    run.used(cost_micros=100)  # the provider's price of one request: a hundredth of a cent
    return page * 100


def enter(night, page, price):  # may run again after a crash, with the same result
    Path(f"report-{night}").mkdir(exist_ok=True)
    Path(f"report-{night}", f"{page}.txt").write_text(f"page {page}: {price}\n")


async def done(handle, mailbox, answer):
    while (await handle.status()).finished_at is None:
        async for asked in mailbox.questions:
            if not answer:
                sys.exit(f"{asked.text} Start it again with yes or no.")
            asks = await mailbox.handle(asked.run_id)
            await asks.answer(question_id=asked.question_id, approved=answer == "yes", by="the operator")
        with suppress(TimeoutError):
            await handle.result(timeout=1)


async def main(night, jobs=10_000, a_second=500, cents=50, answer="", url="sqlite:///nightly.db"):
    rate = Limit(per=LimitScope.KEY, starts=int(a_second), period=timedelta(seconds=1))
    money = Budget(per=BudgetScope.KEY, window=BudgetWindow.DAY, cost_micros=int(cents) * 10_000)
    config = MailboxConfig(limits=(rate,), budgets=(money,))
    async with Mailbox.open(url, job, config=config) as mailbox:
        items = [Item(f"page-{n}", (night, n), key=night, limit_key="provider") for n in range(int(jobs))]
        handles = await mailbox.enqueue_many(items, progress=lambda n, of: print("enqueued", n, "of", of))
        for number, handle in enumerate(handles, start=1):
            await done(handle, mailbox, answer)
            if number % 100 == 0 or number == len(handles):
                print("done", number, "of", len(handles), flush=True)


with suppress(KeyboardInterrupt):
    asyncio.run(main(*sys.argv[1:]))
