"""Much work in one call, once for each key; budgets of concurrent runs; schedules."""

import asyncio
import re
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from embedded_room import SOON, both_engines, echo, on, texts, told
from machine import PATIENCE
from postroom import (
    Budget,
    BudgetScope,
    BudgetWindow,
    GiveUp,
    Item,
    MailboxConfig,
    Message,
    QueueFull,
    RunUnsuccessful,
)
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import DuplicateRecord, MailboxClosed, UnknownSchedule
from postroom.contracts.limits import Limit, LimitScope
from postroom.contracts.records import replace
from postroom.dispatch import submission
from postroom.stores.codec import encode

LATER = timedelta(days=1)


async def nothing(run):
    """Be done."""


async def queued(mailbox):
    return (await mailbox.stores.dispatches.count_by_status())[RunDispatchStatus.QUEUED]


@pytest.mark.long
async def test_each_item_is_answered_and_handles_come_in_order(opening):
    progress, threads = [], [f"chat-{number % 700}" for number in range(1_200)]
    items = (Item(thread, {"page": number}) for number, thread in enumerate(threads))
    async with opening(echo) as mailbox:
        handles = await mailbox.enqueue_many(items, progress=lambda *done: progress.append(done))
        assert [handle.thread_id for handle in handles] == threads
        assert progress == [(500, 1_200), (1_000, 1_200), (1_200, 1_200)]
        for number in (1_199, 499):
            assert await handles[number].result(timeout=60) == f'you said {{"page":{number}}}'
        assert await mailbox.enqueue_many([]) == []


async def rows_of(mailbox, handle):
    """Return the stored records of a thread and its newest run, without ids and instants."""
    threads = mailbox.stores.threads
    run = await threads.load_run(handle.id)
    [row] = [one for one in await mailbox.admin.list_dispatches(handle.thread_id) if one.run_id == handle.id]
    ids = run.input.trigger_message_ids
    said = await threads.load_message_records(handle.thread_id, ids)
    shown = encode([await threads.load_thread(handle.thread_id), run, row, *said])
    for number, name in enumerate((handle.thread_id, handle.id, row.dispatch_id, *ids)):
        shown = shown.replace(name, f"#{number}")
    return re.sub(r"[0-9]{13,}", "0", shown)


@both_engines
async def test_the_same_rows_are_written_as_by_enqueue(opening):
    options = {
        "key": "k",
        "agent": "ada",
        "tenant": "acme",
        "limit_key": "mail",
        "priority": 7,
        "delay": LATER,
        "deadline": datetime(2100, 1, 1, tzinfo=UTC),
        "attempts": 3,
        "retry_delay": timedelta(seconds=2),
        "max_retry_delay": timedelta(seconds=9),
    }
    async with opening(nothing) as mailbox:
        for thread in ("used-1", "used-2"):
            await mailbox.enqueue(thread, "before", delay=LATER)
        alone = [
            await mailbox.enqueue("new-1", {"a": 1}, **options),
            await mailbox.enqueue("used-1", "more", delay=LATER),
        ]
        items = [Item("new-2", {"a": 1}, **options), Item("used-2", "more", delay=LATER)]
        for one, other in zip(alone, await mailbox.enqueue_many(items), strict=True):
            assert await rows_of(mailbox, one) == await rows_of(mailbox, other)


class Counted:
    """Counts what a transaction waits for, and passes everything on."""

    def __init__(self, sql, looks):
        self._sql, self._looks = sql, looks

    def __getattr__(self, name):
        if name in ("ask", "all", "one", "changed"):
            self._looks.append(name)
        return getattr(self._sql, name)


async def test_what_a_commit_looks_at_does_not_grow_with_its_items(opening):
    looks = []
    async with opening(nothing) as mailbox:
        engine = mailbox.stores.store.engine
        write = engine.write
        engine.write = lambda change, **options: write(lambda sql: change(Counted(sql, looks)), **options)
        for most in (4, 8):
            await mailbox.enqueue_many(Item(f"t{number % 20}", number, delay=LATER) for number in range(60))
            assert len(looks) <= most


async def test_any_mix_of_threads_and_keys_leaves_what_single_calls_leave(opening):
    random = Random(12)

    def mixed(number):
        key = f"k{random.randrange(12)}" if random.random() < 0.5 else None
        priority, thread = random.randrange(256), f"alone-{random.randrange(9)}"
        return Item(
            thread, key or f"{number}", key=key, priority=priority, delay=LATER
        )  # a key names one content

    plain = [mixed(number) for number in range(80)]
    many = [replace(item, thread=item.thread.replace("alone", "many")) for item in plain]
    async with opening(nothing) as mailbox:
        for item in plain:
            options = {"key": item.key, "priority": item.priority, "delay": item.delay}
            await mailbox.enqueue(item.thread, item.content, **options)
        for part in (many[:30], many[30:]):  # the second finds threads and keys of the first
            await mailbox.enqueue_many(part)

        async def left(items):
            return [
                (
                    await texts(mailbox, thread),
                    sorted(row.priority for row in await mailbox.admin.list_dispatches(thread)),
                )
                for thread in sorted({item.thread for item in items})
            ]

        assert await left(plain) == await left(many)


@both_engines
async def test_the_same_keys_again_or_at_once_enqueue_the_rest_and_double_nothing(opening):
    items = [Item(f"t{number % 7}", number, key=f"job-{number}", delay=LATER) for number in range(40)]
    async with opening(nothing) as mailbox:
        first = await mailbox.enqueue_many([*items[:25], *items[:3]])
        one, other = await asyncio.gather(mailbox.enqueue_many(items), mailbox.enqueue_many(items[::-1]))
        ids = [handle.id for handle in one]
        assert [handle.id for handle in first] == [*ids[:25], *ids[:3]]
        assert [handle.id for handle in other[::-1]] == ids
        assert (len(set(ids)), await queued(mailbox)) == (40, 40)
        assert (await mailbox.enqueue("t3", 3, key="job-3")).id == ids[3]


@both_engines
async def test_the_same_items_again_are_answered_at_once(opening):
    """The runs ended before this process began, or before anybody here waited for them."""
    items = [Item(f"t{number}", number, key="once") for number in range(5)]
    async with opening(echo) as mailbox:
        for handle in await mailbox.enqueue_many(items):
            await handle.result(timeout=PATIENCE)
        del handle
        again = [await mailbox.enqueue("t0", 0, key="once"), *await mailbox.enqueue_many(items)]
        assert [await handle.result(timeout=1) for handle in again[:2]] == ["you said 0"] * 2
    async with opening(echo) as mailbox:
        again = [await mailbox.enqueue("t0", 0, key="once"), *await mailbox.enqueue_many(items)]
        answers = [await handle.result(timeout=1) for handle in again]
    assert answers == ["you said 0", *(f"you said {number}" for number in range(5))]


async def test_a_call_that_is_cut_off_between_two_commits_is_called_again(opening, monkeypatch):
    monkeypatch.setattr(submission, "MAX_BATCH", 10)
    items = [Item(f"t{number}", number, key="once", delay=LATER) for number in range(35)]

    def give_up(done, of):
        if done == 20:
            raise ConnectionAbortedError

    async with opening(nothing) as mailbox:
        with pytest.raises(ConnectionAbortedError):
            await mailbox.enqueue_many(items, progress=give_up)
        assert await queued(mailbox) == 20
        assert len({handle.id for handle in await mailbox.enqueue_many(items)}) == await queued(mailbox) == 35


async def test_what_cannot_be_stored_undoes_its_commit_and_no_other(opening, monkeypatch):
    monkeypatch.setattr(submission, "MAX_BATCH", 2)
    items = [Item(thread, "a", delay=LATER) for thread in ("t", "t", "u", "t")]
    async with opening(nothing, replace(SOON, max_queued_per_thread=2)) as mailbox:
        with pytest.raises(QueueFull, match=r"^item 3: .*thread 't'"):
            await mailbox.enqueue_many(items)
        with pytest.raises(DuplicateRecord, match=r"^item 1: "):
            await mailbox.enqueue_many([Item("v", Message.user("a", id="m"))] * 2)
        assert [await texts(mailbox, thread) for thread in "tuv"] == [["a", "a"], [], []]
    with pytest.raises(MailboxClosed):
        await mailbox.enqueue_many(items)


async def test_another_call_is_answered_between_two_commits(opening):
    async with opening(nothing) as mailbox, asyncio.TaskGroup() as group:
        seen = []
        items = [Item(f"t{number}", number, delay=LATER) for number in range(1_500)]
        group.create_task(mailbox.enqueue_many(items, progress=lambda done, _: seen.append(done)))
        while not seen:
            await asyncio.sleep(0)
        await mailbox.enqueue("other", "me too", delay=LATER)
        assert seen[-1] < 1_500


async def test_runs_of_one_limit_key_or_tenant_are_as_many_at_once_as_may_be(opening):
    going, together = set(), set()

    async def watched(run):
        going.add(run.id)
        await asyncio.sleep(0)
        together.add(len(going))
        going.discard(run.id)

    limits = (Limit(per=LimitScope.KEY, at_once=1), Limit(per=LimitScope.TENANT, at_once=1))
    async with opening(watched, replace(SOON, limits=limits)) as mailbox:
        handles = await mailbox.enqueue_many(Item(f"a{n}", "go", limit_key="provider") for n in range(4))
        handles += [await mailbox.enqueue(f"b{n}", "go", limit_key="provider") for n in range(3)]
        for handle in handles:
            await handle.result(timeout=60)
        handles = await mailbox.enqueue_many(Item(f"c{n}", "go", tenant="acme") for n in range(4))
        seen = await told(mailbox.stream("d", "go", tenant="acme", limit_key="provider"))
        for handle in handles:
            await handle.result(timeout=60)
        assert (together, seen) == ({1}, [("end", "")])


# A budget of money or tokens is not spent by runs that start beside each other before their cost is known.


def within(per, **limit):
    budget = Budget(per=per, window=BudgetWindow.MONTH, **limit)
    return MailboxConfig(
        budgets=(budget,),
        poll_interval=timedelta(milliseconds=50),
        default_retry_delay_ms=0,
        drain_grace=timedelta(0),
    )


async def assert_used_up(mailbox, used):
    async with asyncio.timeout(60):
        while not (asked := [one.text async for one in mailbox.questions]):
            await asyncio.sleep(0)
    assert f"is used up: {used} of {used} " in asked[0]


@pytest.mark.parametrize("per", [BudgetScope.TENANT, BudgetScope.KEY, BudgetScope.AGENT, BudgetScope.ALL])
async def test_as_many_runs_start_as_the_budget_pays_for(opening, per):
    ended = []

    async def paid(run):
        run.used(cost_micros=100)
        await asyncio.sleep(0)
        ended.append(run.id)

    async with opening(paid, within(per, cost_micros=3_000)) as mailbox:
        items = [Item(f"t{n}", "go", tenant="acme", limit_key="llm", agent="ada") for n in range(80)]
        await mailbox.enqueue_many(items)
        await assert_used_up(mailbox, "0.003")
        assert len(ended) == 30


async def test_four_runs_execute_at_once_while_no_cost_is_known_and_the_others_say_why(opening):
    begun, go_on, others, now = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event(), set()
    most = []

    async def paid(run):
        now.add(run.id)
        most.append(len(now))
        begun.release()
        if run.thread_id == "another agent":
            others.set()
        await go_on.wait()
        run.used(cost_micros=1_000)
        now.discard(run.id)
        return "done"

    async with opening(paid, within(BudgetScope.AGENT, cost_micros=8_000)) as mailbox:
        handles = await mailbox.enqueue_many([Item(f"t{n}", "go", agent="ada") for n in range(8)])
        async with asyncio.timeout(60):
            for _ in range(4):
                await begun.acquire()
            await mailbox.enqueue("another agent", "go", agent="bo")
            await others.wait()
        reasons = [await mailbox.admin.why_not(handle.id) for handle in handles]
        assert (max(most), [reason.why for reason in reasons].count("over_budget")) == (5, 4)
        assert any("4 active runs of agent:ada" in reason.text for reason in reasons)
        go_on.set()
        assert [await handle.result(timeout=60) for handle in handles] == ["done"] * 8
        assert [asked async for asked in mailbox.questions] == []


@both_engines
async def test_what_a_step_used_is_counted_once_though_its_server_ends_or_the_run_fails(opening):
    """The cost of a stored step is neither lost with an execution nor counted again by the next one."""
    stored, called = asyncio.Event(), []

    async def price(run):
        called.append(run.id)
        run.used(cost_micros=70)
        await asyncio.to_thread(run.used, cost_micros=30)

    async def paid(run):
        await run.step("price", price, run)
        if run.text == "cut off" and not stored.is_set():
            stored.set()
            await asyncio.Event().wait()
        if run.text == "fails once" and run.attempt == 1:
            raise ValueError("the first attempt fails")
        return "done"

    config = within(BudgetScope.ALL, cost_micros=400)
    async with opening(paid, config) as mailbox:
        cut = await mailbox.enqueue("cut", "cut off")
        async with asyncio.timeout(60):
            await stored.wait()
    async with opening(paid, config) as mailbox:
        again = await mailbox.enqueue("again", "fails once")
        for handle in (again, await mailbox.handle(cut.id)):
            assert await handle.result(timeout=60) == "done"
            assert (await mailbox.stores.threads.load_run(handle.id)).usage.cost_micros == 100
        assert len(called) == 2
        for thread in ("third", "fourth"):
            assert await (await mailbox.enqueue(thread, "x")).result(timeout=60) == "done"
        await mailbox.enqueue("fifth", "x")
        await assert_used_up(mailbox, "0.0004")
        assert len(called) == 4


async def test_what_a_failed_run_has_used_counts_and_so_do_tokens(opening):
    async def use(run, **usage):
        run.used(**usage)
        if run.text == "fails":
            raise GiveUp("it cannot be done")

    async def paid(run):
        run.used(cost_micros=3, input_tokens=900)
        await run.step("use", use, run, cost_micros=120, output_tokens=100)

    for limit, used, text in (
        ({"cost_micros": 123}, "0.000123", "fails"),
        ({"tokens": 1_000}, "1000", "succeeds"),
    ):
        async with opening(paid, within(BudgetScope.ALL, **limit)) as mailbox:
            handle = await mailbox.enqueue("first", text)
            if text == "fails":
                with pytest.raises(RunUnsuccessful):
                    await handle.result(timeout=60)
            else:
                await handle.result(timeout=60)
            await mailbox.enqueue("second", "x")
            await assert_used_up(mailbox, used)


@on("sqlite")
async def test_a_run_whose_steps_were_stored_before_is_no_free_run(opening):
    """The runs that a server left are executed again at no new cost: their cost bounds those that start next."""
    stored, ended, goes_on = [], [], asyncio.Event()

    async def paid(run):
        await run.step("price", run.used, cost_micros=100)
        stored.append(run.id)
        if run.thread_id.startswith("old"):
            await goes_on.wait()
        ended.append(run.id)

    config = within(BudgetScope.ALL, cost_micros=2_000)
    async with opening(paid, config) as mailbox:
        await mailbox.enqueue_many([Item(f"old{n}", "x") for n in range(4)])
        async with asyncio.timeout(60):
            while len(stored) < 4:
                await asyncio.sleep(0)
    goes_on.set()
    async with opening(paid, config) as mailbox:
        await mailbox.enqueue_many([Item(f"new{n}", "x") for n in range(60)])
        await assert_used_up(mailbox, "0.002")
        assert len(ended) == 20


# Schedules: when they are due, and what is missed or overlaps, `tests/schedules` says.


@on("sqlite")
async def test_a_schedule_is_kept_listed_paused_triggered_and_removed_and_is_there_after_a_restart(opening):
    async with opening(echo) as mailbox:
        every = {"every": timedelta(hours=1), "zone": "Europe/Berlin"}
        await mailbox.schedules.add("hourly", "chat-1", "report", **every)
        await mailbox.schedules.add("monday", "chat-2", {"page": 1}, cron="0 9 * * MON", missed="skip")
        assert [one.name for one in await mailbox.schedules.list()] == ["hourly", "monday"]
        assert (await mailbox.schedules.pause("monday")).is_paused
        handle = await mailbox.schedules.trigger("monday")
        assert await handle.result(timeout=PATIENCE) == 'you said {"page":1}'
        assert not (await mailbox.schedules.resume("monday")).is_paused
        hourly, monday = await mailbox.schedules.list()
        assert [hourly.submitted, monday.submitted] == [0, 1]
        assert await mailbox.schedules.remove("monday")
        with pytest.raises(UnknownSchedule):
            await mailbox.schedules.trigger("monday")
    async with opening(echo) as mailbox:
        again = await mailbox.schedules.add("hourly", "chat-1", "report", **every)
        assert again.schedule_id == hourly.schedule_id


@on("postgres")
async def test_workers_that_share_a_database_enqueue_each_tick_once(opening):
    seen, three = Counter(), asyncio.Event()

    async def note(run):
        seen[run.id] += 1
        if len(seen) == 3:
            three.set()

    async with AsyncExitStack() as opened:
        mailboxes = [await opened.enter_async_context(opening(note)) for _ in range(4)]
        for one in mailboxes:
            await one.schedules.add("ticking", "t", "go", every=timedelta(seconds=1))
        async with asyncio.timeout(PATIENCE):
            await three.wait()
        for one in mailboxes:
            await one.schedules.remove("ticking")
        messages = await mailboxes[0].stores.threads.load_messages("t")
        asked = [one.id for one in messages if one.role == "user"]
        assert set(seen.values()) == {1}
        assert {*seen} <= {*asked}
        assert len(asked) == len({*asked}) <= 4
