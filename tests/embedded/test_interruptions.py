"""The end of a server interrupts a run and is not a failure of it; a passed deadline is refused or fails its run."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from embedded_room import answer_open_question, on, texts
from machine import PATIENCE
from postroom import (
    Budget,
    BudgetScope,
    BudgetWindow,
    BusyPolicy,
    GiveUp,
    Item,
    Limit,
    LimitScope,
    MailboxConfig,
    RunUnsuccessful,
    State,
)
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import InvalidSubmission
from postroom.dispatch.inspection import WhyNot


class LongWork:
    """Hangs until its last start, then fails or answers."""

    def __init__(self, interruptions, *, failures=0, error=OSError):
        self._left, self._failures, self._begun = interruptions, failures, asyncio.Event()
        self._error = error

    async def __call__(self, run):
        if self._left:
            self._left -= 1
            self._begun.set()
            await asyncio.Event().wait()
        if self._failures:
            self._failures -= 1
            raise self._error("the other side is away")
        return "done"

    async def begun(self):
        async with asyncio.timeout(PATIENCE):
            await self._begun.wait()
        self._begun.clear()


async def killed(mailbox, work, times):
    """Kill the process each time the work has started; the next process continues the run."""
    for _ in range(times):
        mailbox.clock.advance(timedelta(seconds=5))  # longer than any delay between two interruptions
        await mailbox.admin.poll()
        await work.begun()
        await mailbox.crash()
        claimed = await mailbox.stores.dispatches.list_by_status(RunDispatchStatus.CLAIMED)
        if any(row.claimed_by != mailbox.admin.consumer_id for row in claimed):
            mailbox.clock.advance(timedelta(minutes=1))  # on PostgreSQL others wait for the lease to end
        await mailbox.admin.run_sweep()


@on("memory", "postgres")
async def test_a_run_that_outlives_nine_killed_servers_is_done_and_no_dead_letter(manual):
    work = LongWork(9)
    async with manual(work) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await killed(mailbox, work, 9)
        mailbox.clock.advance(timedelta(seconds=5))
        await mailbox.run_until_idle()
        assert await handle.result(timeout=PATIENCE) == "done"
        assert [one async for one in mailbox.dead_letters] == []


async def test_a_run_fails_as_often_as_it_may_however_often_its_server_ended(manual):
    work = LongWork(3, failures=9)
    async with manual(work) as mailbox:
        handle = await mailbox.enqueue("t", "go", attempts=2)
        await killed(mailbox, work, 3)
        for _ in range(2):
            mailbox.clock.advance(timedelta(hours=1))
            await mailbox.run_until_idle()
        with pytest.raises(RunUnsuccessful, match="the other side is away"):
            await handle.result(timeout=PATIENCE)
        [dead] = [one async for one in mailbox.dead_letters]
        assert (dead.attempts, dead.interruptions) == (2, 3)


async def test_a_failure_that_no_retry_can_fix_is_counted_also_if_no_interruption_is_left(manual):
    work = LongWork(1, failures=1, error=GiveUp)
    async with manual(work) as mailbox:
        await mailbox.enqueue("t", "go", interruptions=1)
        await killed(mailbox, work, 1)
        await mailbox.run_until_idle()
        [dead] = [one async for one in mailbox.dead_letters]
        assert (dead.attempts, dead.interruptions) == (1, 1)


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        (0, "once because its server ended or lost its lease; the limit is 0 interruptions"),
        (1, "2 times because its server ended or lost its lease; the limit is 1 interruption"),
        (2, "3 times because its server ended or lost its lease; the limit is 2 interruptions"),
    ],
)
async def test_a_run_that_is_interrupted_too_often_is_a_dead_letter_that_says_so(manual, allowed, told):
    work = LongWork(99)
    async with manual(work, MailboxConfig(default_max_interruptions=9)) as mailbox:
        handle = await mailbox.enqueue("t", "go", interruptions=allowed)
        await killed(mailbox, work, allowed + 1)
        assert (await handle.status()).state is State.FAILED
        [dead] = [one async for one in mailbox.dead_letters]
        assert (dead.attempts, dead.interruptions) == (0, allowed + 1)
        assert dead.error == f"the run was interrupted {told}"
        again = await mailbox.dead_letters.replay(handle.id)
        await work.begun()
        assert (await again.status()).state is State.RUNNING


async def test_the_limit_of_a_mailbox_holds_for_runs_that_say_nothing_of_it(manual):
    work = LongWork(99)
    async with manual(work, MailboxConfig(default_max_interruptions=0)) as mailbox:
        [handle] = await mailbox.enqueue_many([Item("t", "go", attempts=9)])
        await killed(mailbox, work, 1)
        assert (await handle.status()).state is State.FAILED


async def test_after_the_first_interruption_a_run_waits_a_little_and_at_most_5_s(manual):
    work = LongWork(7)
    async with manual(work) as mailbox:
        handle, delays = await mailbox.enqueue("t", "go"), []
        for _ in range(7):
            await killed(mailbox, work, 1)
            reason = await mailbox.admin.why_not(handle.id)
            delays.append(reason.until - mailbox.clock.now() if reason.why is WhyNot.NOT_DUE else 0)
    assert delays == [0, 250, 500, 1_000, 2_000, 4_000, 5_000]


@on("sqlite", "postgres")
async def test_a_server_that_stops_in_good_order_interrupts_its_runs_and_fails_none(opening):
    work = LongWork(3)
    for attempt in range(4):
        async with opening(work, MailboxConfig(drain_grace=timedelta(0))) as mailbox:
            handle = await mailbox.enqueue("t", "go", key="once", attempts=1, interruptions=2)
            if attempt < 3:
                await work.begun()
                continue
            with pytest.raises(RunUnsuccessful, match="was interrupted 3 times"):
                await handle.result(timeout=PATIENCE)
            [dead] = [one async for one in mailbox.dead_letters]
            assert (dead.attempts, dead.interruptions) == (0, 3)


# Deadlines.


def from_now(mailbox, seconds):
    return datetime.fromtimestamp(mailbox.stores.clock.now() / 1000, UTC) + timedelta(seconds=seconds)


def ms(deadline):
    return int(deadline.timestamp() * 1000)


async def echo(run):
    return run.text


async def test_a_deadline_that_has_passed_leaves_the_active_run_alone_whatever_is_to_become_of_it(manual):
    begun, going = asyncio.Event(), asyncio.Event()

    async def work(run):
        begun.set()
        await going.wait()
        return "done"

    async with manual(work) as mailbox, asyncio.TaskGroup() as group:
        active = await mailbox.enqueue("t", "first")
        group.create_task(mailbox.run_until_idle())
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        late = from_now(mailbox, -5)
        for policy in BusyPolicy:
            for key in (None, "k"):
                if policy is BusyPolicy.REJECT:
                    continue
                with pytest.raises(
                    InvalidSubmission, match=r"the deadline .* has passed: it is now "
                ) as refused:
                    await mailbox.enqueue("t", "late", deadline=late, when_busy=policy, key=key)
                assert refused.value.value == ms(late)
                assert refused.value.remedy == "set a later deadline, or leave it out"
                assert (await active.status()).state is State.RUNNING
        going.set()
        assert await active.result(timeout=PATIENCE) == "done"
        assert await texts(mailbox) == ["first", "done"]


def entries(mailbox, options, delivery):
    """Return all ways by which a run with these options comes in."""
    request, on_time = RunActivation.new("t", ["late"]).delivered(**delivery), Item("t", "on time")
    return (
        lambda: mailbox.enqueue("t", "late", **options),
        lambda: mailbox.enqueue("t", "late", key="k", **options),
        lambda: mailbox.enqueue("t", "late", when_busy=BusyPolicy.INTERRUPT, **options),
        lambda: mailbox.enqueue_many([on_time, Item("t", "late", **options)]),
        lambda: mailbox.enqueue_many([on_time, Item("t", "late", key="k", **options)]),
        lambda: mailbox.admin.submit(request, strategy=BusyPolicy.QUEUE),
        lambda: mailbox.admin.submit_background(request),
        lambda: mailbox.admin.submit_background(request.hinted(run_id="r")),
        lambda: mailbox.admin.submit_live_then_queue(request),
        *(() if "delay" in options else (lambda: mailbox.admin.submit(request.hinted(run_id="r")),)),
    )


async def test_every_entry_refuses_a_deadline_that_has_passed_or_comes_before_the_delay_and_writes_nothing(
    manual,
):
    async with manual(echo) as mailbox:
        late, soon = from_now(mailbox, -5), from_now(mailbox, 5)
        delayed = {"delay": timedelta(seconds=10), "deadline": soon}
        for options, delivery, why, remedy in (
            ({"deadline": late}, {}, "the deadline .* has passed", "set a later deadline, or leave it out"),
            (
                delayed,
                {"delay_ms": 10_000},
                "the delay of 10 s .* after the deadline ",
                "set a shorter delay or a later deadline",
            ),
        ):
            for enter in entries(mailbox, options, {"deadline_at": ms(options["deadline"]), **delivery}):
                with pytest.raises(InvalidSubmission, match=why) as refused:
                    await enter()
                assert refused.value.remedy == remedy
                assert await mailbox.stores.threads.load_thread("t") is None
        delayed["deadline"] = from_now(mailbox, 10)
        begins_at_its_deadline = await mailbox.enqueue("t", "just in time", **delayed)
        mailbox.clock.advance(timedelta(seconds=10))
        await mailbox.run_until_idle()
        assert await begins_at_its_deadline.result(timeout=0) == "just in time"


async def test_a_run_that_started_in_time_is_tried_again_after_its_deadline(manual):
    tries = []

    async def fails_once(run):
        tries.append(run.attempt)
        if len(tries) == 1:
            raise RuntimeError("not yet")
        return "done"

    async with manual(fails_once) as mailbox:
        options = {"deadline": from_now(mailbox, 1), "retry_delay": timedelta(seconds=5)}
        handle = await mailbox.enqueue("chat", "go", **options)
        await mailbox.run_until_idle()
        mailbox.clock.advance(timedelta(seconds=10))
        await mailbox.run_until_idle()
        assert await handle.result(timeout=PATIENCE) == "done"


@on("memory", "postgres")
async def test_a_run_that_a_killed_server_had_started_in_time_goes_on_after_its_deadline(manual):
    work = LongWork(1)
    async with manual(work) as mailbox:
        handle = await mailbox.enqueue("t", "go", deadline=from_now(mailbox, 10))
        await killed(mailbox, work, 1)
        mailbox.clock.advance(timedelta(minutes=2))
        await mailbox.run_until_idle()
        assert await handle.result(timeout=PATIENCE) == "done"


async def test_what_was_accepted_before_its_deadline_keeps_its_run_when_it_is_enqueued_again(manual):
    async with manual(echo) as mailbox:
        deadline = from_now(mailbox, 5)
        first = await mailbox.enqueue("t", "go", key="k", deadline=deadline)
        mailbox.clock.advance(timedelta(seconds=10))
        assert (await mailbox.enqueue("t", "go", key="k", deadline=deadline)).id == first.id
        [again] = await mailbox.enqueue_many([Item("t", "go", key="k", deadline=deadline)])
        assert again.id == first.id


async def test_a_queued_run_whose_deadline_has_passed_says_so_until_it_fails(manual):
    ends = asyncio.Event()

    async def work(run):
        await ends.wait()

    async with manual(work) as mailbox:
        first = await mailbox.enqueue("chat", "first")
        late = await mailbox.enqueue("chat", "late", deadline=from_now(mailbox, 5))
        assert (await mailbox.admin.why_not(late.id)).why is WhyNot.THREAD_BUSY
        mailbox.clock.advance(timedelta(seconds=6))
        reason = await mailbox.admin.why_not(late.id)
        assert (reason.why, reason.until) == (WhyNot.TOO_LATE, None)
        assert reason.text.endswith("has passed: the run never starts, and fails at the next sweep")
        ends.set()
        await mailbox.run_until_idle()
        assert (await first.status()).state is State.DONE
        assert (await mailbox.admin.why_not(late.id)).why is WhyNot.ENDED


async def until_swept(mailbox, handle):
    """Sweep once, and return the text with which the run has failed."""
    await mailbox.admin.run_sweep()
    status = await handle.status()
    assert status.state is State.FAILED
    return status.error


@on("memory", "postgres")
async def test_the_sweep_fails_queued_runs_whose_deadline_has_passed_though_their_thread_is_busy(manual):
    begun, ends = asyncio.Event(), asyncio.Event()

    async def work(run):
        begun.set()
        await ends.wait()
        return run.text

    async with manual(work) as mailbox, asyncio.TaskGroup() as group:
        first = await mailbox.enqueue("chat", "first")
        late = await mailbox.enqueue("chat", "late", deadline=from_now(mailbox, 5))
        later = await mailbox.enqueue("chat", "later", deadline=from_now(mailbox, 7))
        group.create_task(mailbox.run_until_idle())
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        mailbox.clock.advance(timedelta(seconds=6))
        assert "the deadline passed before the run was started" in await until_swept(mailbox, late)
        assert (await first.status()).state is State.RUNNING
        assert (await later.status()).state is State.QUEUED
        assert [one.run_id async for one in mailbox.dead_letters] == [late.id]
        ends.set()
        assert [await one.result(timeout=PATIENCE) for one in (first, later)] == ["first", "later"]


async def test_a_run_that_asks_whether_it_may_start_fails_at_its_deadline_and_the_next_run_asks(manual):
    budget = Budget(per=BudgetScope.TENANT, window=BudgetWindow.MONTH, runs=1)
    async with manual(echo, config=MailboxConfig(budgets=(budget,))) as mailbox:
        await mailbox.enqueue("first", "go", tenant="acme")
        await mailbox.run_until_idle()
        late = await mailbox.enqueue("a", "late", tenant="acme", deadline=from_now(mailbox, 5))
        await mailbox.run_until_idle()
        held = await mailbox.enqueue("b", "held", tenant="acme")
        await mailbox.run_until_idle()
        assert [(await one.status()).state for one in (late, held)] == [State.WAITING, State.QUEUED]
        mailbox.clock.advance(timedelta(seconds=6))
        with pytest.raises(InvalidSubmission, match=r"the deadline .* has passed"):
            await answer_open_question(late, approved=True)
        assert "the deadline passed before the run was started" in await until_swept(mailbox, late)
        await mailbox.run_until_idle()
        await answer_open_question(held, approved=True)
        await mailbox.run_until_idle()
        assert await held.result(timeout=PATIENCE) == "held"


async def test_a_deadline_that_passes_while_its_run_waits_fails_the_run(manual):
    async with manual(echo) as mailbox:
        options = {"delay": timedelta(seconds=3), "deadline": from_now(mailbox, 5)}
        late = await mailbox.enqueue("chat", "go", **options)
        mailbox.clock.advance(timedelta(seconds=6))
        await mailbox.run_until_idle()
        with pytest.raises(RunUnsuccessful, match="run failed: the deadline passed"):
            await late.result(timeout=PATIENCE)
        assert [one.attempts async for one in mailbox.dead_letters] == [1]


async def test_every_duration_may_be_a_number_of_seconds(manual):
    limit = Limit(per=LimitScope.KEY, starts=1, period=0.5)
    config = MailboxConfig(limits=(limit,), poll_interval=0.25, outage=60)
    assert (limit.period, config.poll_interval) == (timedelta(seconds=0.5), timedelta(seconds=0.25))

    async def work(run):
        await run.step("x", str, "x", attempts=2, delay=0.1)
        await run.sleep(20)
        answer = await run.ask("And now?", timeout=30)
        return f"{answer.timed_out}"

    async with manual(work, config=config) as mailbox:
        options = {"delay": 5, "retry_delay": 1.5, "max_retry_delay": 60}
        handles = [await mailbox.enqueue("t", "go", **options)]
        handles += await mailbox.enqueue_many([Item("u", "go", **options)])
        run = await mailbox.stores.threads.load_run(handles[0].id)
        delivery = run.activation.delivery
        assert (delivery.delay_ms, delivery.retry_delay_ms, delivery.max_retry_delay_ms) == (
            5_000,
            1_500,
            60_000,
        )
        added = await mailbox.schedules.add("s", "t", "go", every=90, jitter=1.5)
        assert (added.every_ms, added.jitter_ms) == (90_000, 1_500)
        await mailbox.schedules.remove("s")
        for passed, state in (
            (4.9, State.QUEUED),
            (0.1, State.WAITING),
            (20, State.WAITING),
            (30, State.DONE),
        ):
            mailbox.clock.advance(passed)
            await mailbox.run_until_idle()
            assert {(await one.status()).state for one in handles} == {state}
        assert await handles[0].result(timeout=timedelta(seconds=30)) == "True"


async def test_a_run_that_a_budget_held_may_be_answered_after_the_deadline_once_it_has_started(manual):
    budget = Budget(per=BudgetScope.TENANT, window=BudgetWindow.MONTH, runs=1)

    async def work(run):
        return "done" if run.text == "first" else (await run.ask("may it?")).text

    async with manual(work, config=MailboxConfig(budgets=(budget,))) as mailbox:
        await mailbox.enqueue("first", "first", tenant="acme")
        await mailbox.run_until_idle()
        held = await mailbox.enqueue("a", "held", tenant="acme", deadline=from_now(mailbox, 5))
        await mailbox.run_until_idle()
        await answer_open_question(held, approved=True)
        await mailbox.run_until_idle()
        assert (await held.status()).question == "may it?"
        mailbox.clock.advance(timedelta(seconds=6))
        await mailbox.admin.run_sweep()
        await answer_open_question(held, "yes")
        await mailbox.run_until_idle()
        assert await held.result(timeout=PATIENCE) == "yes"
