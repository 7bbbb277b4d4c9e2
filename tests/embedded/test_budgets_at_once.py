"""A budget of money is not spent by runs that start beside each other before their cost is known."""

import asyncio
from datetime import timedelta

import pytest

from embedded_room import Open
from postroom import Budget, BudgetScope, BudgetWindow
from postroom.dispatch.config import MailboxConfig
from postroom.embedded import Item, Mailbox, Run

SCOPES = [BudgetScope.TENANT, BudgetScope.KEY, BudgetScope.AGENT, BudgetScope.ALL]


def with_money(per: BudgetScope, cost_micros: int) -> MailboxConfig:
    budget = Budget(per=per, window=BudgetWindow.MONTH, cost_micros=cost_micros)
    return MailboxConfig(budgets=(budget,), poll_interval=timedelta(milliseconds=50))


async def the_question(mailbox: Mailbox) -> str:
    async with asyncio.timeout(60):
        while True:
            async for asked in mailbox.questions:
                return asked.text
            await asyncio.sleep(0)


@pytest.mark.parametrize("per", SCOPES)
async def test_as_many_runs_start_as_the_budget_pays_for(opening: Open, per: BudgetScope) -> None:
    ended = 0

    async def paid(run: Run) -> str:
        nonlocal ended
        run.used(cost_micros=100)
        await asyncio.sleep(0)
        ended += 1
        return "done"

    async with opening(paid, with_money(per, 3_000)) as mailbox:
        items = [Item(f"t{n}", "go", tenant="acme", limit_key="llm", agent="ada") for n in range(80)]
        await mailbox.enqueue_many(items)
        text = await the_question(mailbox)
        assert "is used up: 0.003 of 0.003 in money" in text
        assert ended == 30


async def test_four_runs_execute_at_once_while_no_cost_is_known_and_the_others_say_why(opening: Open) -> None:
    begun, go_on, others = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    now = most = 0

    async def paid(run: Run) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        begun.release()
        if run.thread_id == "another agent":
            others.set()
        await go_on.wait()
        run.used(cost_micros=1_000)
        now -= 1
        return "done"

    async with opening(paid, with_money(BudgetScope.AGENT, 8_000)) as mailbox:
        handles = await mailbox.enqueue_many([Item(f"t{n}", "go", agent="ada") for n in range(8)])
        async with asyncio.timeout(60):
            for _ in range(4):
                await begun.acquire()
            await mailbox.enqueue("another agent", "go", agent="bo")
            await others.wait()
        reasons = [await mailbox.admin.why_not(handle.id) for handle in handles]
        assert most == 5
        assert [reason.why for reason in reasons].count("over_budget") == 4
        assert any("4 runs of agent:ada" in reason.text for reason in reasons)
        go_on.set()
        for handle in handles:
            assert await handle.result(timeout=60) == "done"
        assert [asked async for asked in mailbox.questions] == []
