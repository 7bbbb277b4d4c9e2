"""A budget of money is not spent by runs that start beside each other before their cost is known."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from embedded_room import Open
from postroom import Budget, BudgetScope, BudgetWindow, GiveUp, RunUnsuccessful
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


@pytest.mark.parametrize("opening", ["sqlite", "postgres"], indirect=True)
async def test_what_a_step_used_is_counted_once_though_its_server_ends_or_the_run_fails(
    opening: Open,
) -> None:
    """The cost of a stored step is neither lost with an execution nor counted again by the next one."""
    stored, called = asyncio.Event(), 0

    async def price(run: Run) -> int:
        nonlocal called
        called += 1
        run.used(cost_micros=70)
        await asyncio.to_thread(run.used, cost_micros=30)
        return 1

    async def paid(run: Run) -> str:
        await run.step("price", price, run)
        if run.text == "cut off" and not stored.is_set():
            stored.set()
            await asyncio.Event().wait()
        if run.text == "fails once" and run.attempt == 1:
            raise ValueError("the first attempt fails")
        return "done"

    config = with_money(BudgetScope.ALL, 400)
    config = replace(config, default_retry_delay_ms=0, drain_grace=timedelta(0))
    async with opening(paid, config) as mailbox:
        cut = await mailbox.enqueue("cut", "cut off")
        async with asyncio.timeout(60):
            await stored.wait()
    async with opening(paid, config) as mailbox:
        again = await mailbox.enqueue("again", "fails once")
        assert await again.result(timeout=60) == "done"
        assert await (await mailbox.handle(cut.id)).result(timeout=60) == "done"
        assert called == 2
        for handle in (cut, again):
            run = await mailbox.stores.threads.load_run(handle.id)
            assert run is not None
            assert run.usage.cost_micros == 100
        for thread in ("third", "fourth"):
            assert await (await mailbox.enqueue(thread, "x")).result(timeout=60) == "done"
        await mailbox.enqueue("fifth", "x")
        assert "is used up: 0.0004 of 0.0004 in money" in await the_question(mailbox)
        assert called == 4


async def test_what_a_failed_run_has_used_counts(opening: Open) -> None:
    async def price(run: Run) -> None:
        run.used(cost_micros=100)

    async def fail(run: Run) -> None:
        run.used(cost_micros=20)
        raise GiveUp("it cannot be done")

    async def paid(run: Run) -> None:
        await run.step("price", price, run)
        run.used(cost_micros=3)
        await run.step("fail", fail, run)

    async with opening(paid, with_money(BudgetScope.ALL, 123)) as mailbox:
        with pytest.raises(RunUnsuccessful):
            await (await mailbox.enqueue("first", "x")).result(timeout=60)
        await mailbox.enqueue("second", "x")
        assert "is used up: 0.000123 of 0.000123 in money" in await the_question(mailbox)


@pytest.mark.parametrize("opening", ["sqlite", "postgres"], indirect=True)
async def test_a_run_whose_steps_were_stored_before_is_no_free_run(opening: Open) -> None:
    """The runs that a server left are executed again at no new cost: their cost bounds those that start next."""
    stored, goes_on, ended = 0, asyncio.Event(), 0

    async def price(run: Run) -> None:
        run.used(cost_micros=100)

    async def paid(run: Run) -> str:
        nonlocal stored, ended
        await run.step("price", price, run)
        stored += 1
        if run.thread_id.startswith("old"):
            await goes_on.wait()
        ended += 1
        return "done"

    config = replace(with_money(BudgetScope.ALL, 2_000), drain_grace=timedelta(0))
    async with opening(paid, config) as mailbox:
        await mailbox.enqueue_many([Item(f"old{n}", "x") for n in range(4)])
        async with asyncio.timeout(60):
            while stored < 4:
                await asyncio.sleep(0)
    goes_on.set()
    async with opening(paid, config) as mailbox:
        await mailbox.enqueue_many([Item(f"new{n}", "x") for n in range(60)])
        assert "is used up: 0.002 of 0.002 in money" in await the_question(mailbox)
        assert ended == 20
