"""How much is done at once: bounds of a process, limits of all workers of a database, fairness, full queues, draining."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from dispatch.conftest import both_engines
from dispatch_room import ACKED, CLAIMED, QUEUED, Blocking, Counting, Deaf, ask, done, until
from postroom.contracts import errors
from postroom.contracts.clock import milliseconds
from postroom.contracts.limits import Limit, LimitScope
from postroom.dispatch.config import MailboxConfig
from postroom.testing.run_faults import with_parts

SECOND = timedelta(seconds=1)
NO_WORK = MailboxConfig(max_concurrent_runs=0)


class Gauge(Deaf):
    """Counts how many execute, in all, of each tenant and of each key; each continues when it is released."""

    def __init__(self):
        super().__init__()
        self.now, self.peak, self._go = Counter(), Counter(), asyncio.Semaphore(0)

    def let_go(self, count):
        for _ in range(count):
            self._go.release()

    async def execute(self, activation, sink):
        names = ("all", activation.delivery.tenant or "nobody", activation.delivery.limit_key or "no key")
        self.now.update(names)
        self.peak |= self.now
        await self._go.acquire()
        self.now.subtract(names)
        return done(activation)


async def queued(room, count, prefix="t", mailbox=None, **delivery):
    """Submit this many runs, by default through a mailbox that executes none."""
    writer = mailbox or room.mailbox(Counting(), consumer_id="writer", config=NO_WORK)
    threads = [f"{prefix}{number:03d}" for number in range(count)]
    return [await writer.submit_background(ask(thread, **delivery)) for thread in threads]


def limited(*limits, **more):
    return MailboxConfig(limits=limits, **more)


# Limits of a database.


@both_engines
async def test_limits_hold_for_two_workers_of_one_database_for_all_each_tenant_and_each_key(room):
    runs = await queued(room, 4, "a", tenant="acme", limit_key="model")
    runs += await queued(room, 4, "b", tenant="other", limit_key="model")
    runs += await queued(room, 4, "c", tenant="other")
    executor, per = Gauge(), LimitScope
    config = limited(
        Limit(per=per.ALL, at_once=4), Limit(per=per.TENANT, at_once=3), Limit(per=per.KEY, at_once=2)
    )
    for name in ("one", "two"):
        await room.mailbox(executor, consumer_id=name, config=config).start_lifecycle_ready()
    await until(lambda: executor.now["all"] == 4)
    executor.let_go(12)
    await room.acked(*runs)
    assert (executor.peak["all"], executor.peak["model"]) == (4, 2)
    assert max(executor.peak["acme"], executor.peak["other"]) <= 3


async def test_what_a_key_at_its_limit_has_queued_hides_nothing_of_others(room):
    await queued(room, 20, "a", limit_key="model")
    late = await queued(room, 1, "z", limit_key="other")
    executor = Gauge()
    config = limited(Limit(per=LimitScope.KEY, at_once=1), max_concurrent_runs=4)
    mailbox = room.mailbox(executor, config=config)
    for _ in range(2):
        await mailbox.poll()
    await room.comes_to(CLAIMED, *late)
    executor.let_go(20)
    await mailbox.settled()


async def test_no_more_runs_begin_in_any_span_than_may(room):
    runs, executor, begun = await queued(room, 7), Counting(), []
    config = limited(Limit(per=LimitScope.ALL, starts=3, period=10 * SECOND))
    workers = [room.mailbox(executor, consumer_id=name, config=config) for name in ("one", "two")]
    for _ in range(30):
        for worker in workers:
            await worker.poll()
            await worker.settled()
        begun += [room.clock.now()] * (executor.run_count - len(begun))
        room.passes(seconds=1)
    assert len(begun) == 7
    assert all(later - earlier >= 10_000 for earlier, later in zip(begun, begun[3:], strict=False))
    assert begun[3] - begun[0] == 10_000
    await room.acked(*runs)


async def test_who_is_kept_back_by_a_limit_is_told_so_and_what_began_long_ago_is_forgotten(room):
    first, second = await queued(room, 2, limit_key="model")
    mailbox = room.mailbox(
        Counting(), config=limited(Limit(per=LimitScope.KEY, starts=1, period=60 * SECOND))
    )
    await mailbox.poll()
    await room.acked(first)
    reason = await mailbox.why_not(second.dispatch_id)
    assert (reason.why, reason.until) == ("at_limit", room.clock.now() + 60_000)
    assert "key:model" in reason.text
    for number in (1, 0):
        begun = await room.stores.store.read(lambda tx: tx.runs.dispatches.starts("key:model", 5))
        assert begun[0] == number
        room.passes(seconds=61)
        await mailbox.run_gc()


def test_a_limit_that_limits_nothing_is_refused():
    none, wrong = timedelta(0), [{}, {"starts": 3}, {"period": SECOND}, {"at_once": 0}]
    for given in (*wrong, {"starts": 0, "period": SECOND}, {"starts": 1, "period": none}):
        with pytest.raises(errors.ConfigError):
            Limit(per=LimitScope.ALL, **given)


# Bounds of a process, and fairness.


async def test_no_more_runs_execute_at_once_than_may_and_all_come_to_their_turn(room):
    executor = Gauge()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=3))
    runs = await queued(room, 12, mailbox=mailbox)
    await until(lambda: executor.now["all"] == 3)
    executor.let_go(12)
    await room.acked(*runs)
    assert (executor.peak["all"], executor.run_count) == (3, 12)


async def test_a_tenant_at_its_bound_does_not_keep_others_waiting(room):
    executor = Gauge()
    config = MailboxConfig(max_concurrent_runs=8, max_concurrent_runs_per_tenant=2)
    mailbox = room.mailbox(executor, config=config)
    runs = await queued(room, 6, "a", mailbox, tenant="acme")
    [other] = await queued(room, 1, "b", mailbox, tenant="other")
    assert other.status == "running"
    await until(lambda: executor.now["all"] == 3)
    executor.let_go(7)
    await room.acked(*runs, other)
    assert (executor.peak["acme"], executor.peak["other"]) == (2, 1)
    assert {(await room.row(one)).attempt_count for one in runs} == {0}


async def test_a_tenant_that_is_found_at_its_bound_only_after_the_claim_is_given_back_uncounted(room):
    executor, runs = Gauge(), await queued(room, 3, tenant="acme")
    await room.mailbox(executor, config=MailboxConfig(max_concurrent_runs_per_tenant=1)).poll()
    assert executor.run_count <= 1
    executor.let_go(3)
    await room.acked(*runs)
    assert executor.peak["acme"] == 1
    assert {(await room.row(one)).attempt_count for one in runs} == {0}


async def test_a_foreground_submission_starts_at_once_also_beyond_the_bounds_of_the_process(room):
    executor = Gauge()
    config = MailboxConfig(max_concurrent_runs=1, max_concurrent_runs_per_tenant=1)
    mailbox = room.mailbox(executor, config=config)
    first, waits = await queued(room, 2, mailbox=mailbox, tenant="acme")
    now, _ = await mailbox.submit(ask("now", tenant="acme"))
    await until(lambda: executor.now["all"] == 2)
    assert (await room.row(waits)).status is QUEUED
    executor.let_go(3)
    await room.acked(first, now)


async def test_due_work_that_may_not_start_is_not_asked_for_again_and_again(room):
    """A tenant at its bound has due work; the poller rests, and does not spin."""

    class Hints:
        asked = ()

        async def wait(self, at_most):
            self.asked += (milliseconds(at_most),)
            await asyncio.sleep(0)

    executor, hints = Gauge(), Hints()
    config = MailboxConfig(max_concurrent_runs_per_tenant=1)
    mailbox = room.mailbox(executor, stores=with_parts(room.stores, wakeups=hints), config=config)
    runs = await queued(room, 3, mailbox=mailbox, tenant="acme")
    await mailbox.start_lifecycle_ready()
    await until(lambda: len(hints.asked) > 3)
    assert set(hints.asked) == {1_000}
    executor.let_go(3)
    await room.acked(*runs)


async def test_a_tenant_with_a_long_queue_does_not_hide_the_delayed_run_of_another(room):
    await queued(room, 210, tenant="acme")
    config = MailboxConfig(max_concurrent_runs=10, max_concurrent_runs_per_tenant=2)
    mailbox = room.mailbox(Gauge(), config=config)
    await mailbox.poll()
    [late] = await queued(room, 1, "late", tenant="other", delay_ms=1_000)
    room.passes(seconds=2)
    assert await mailbox.poll() == 1
    assert (await room.comes_to(CLAIMED, late)).tenant == "other"


async def test_tenants_share_the_slots_also_without_a_bound_of_each(room):
    for number in range(30):
        await queued(room, 1, f"a{number}", tenant="acme")
        await queued(room, 1, f"n{number}")
        room.passes(milliseconds=1)
    await queued(room, 2, "b", tenant="other")
    executor = Gauge()
    await room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=6)).poll()
    await until(lambda: executor.now["all"] == 6)
    assert [executor.now[name] for name in ("acme", "nobody", "other")] == [2, 2, 2]


async def test_a_thread_with_a_long_queue_gives_way_to_what_became_due_meanwhile(room):
    """All slots are taken by one thread that always has more work; another tenant's run was delayed."""
    executor = Gauge()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=1))
    for _ in range(20):
        await mailbox.submit_background(ask("busy", tenant="acme"))
    [late] = await queued(room, 1, "late", mailbox, tenant="other", delay_ms=500)
    await mailbox.start_lifecycle_ready()
    room.passes(seconds=2)
    executor.let_go(4)
    await room.acked(late)
    executor.let_go(20)


# What is refused, and how a mailbox ends.


async def test_a_full_queue_refuses_and_writes_nothing(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_queued_per_thread=2))
    words = ["running", "one", "two"]
    for word in words:
        await mailbox.submit_background(ask("t", word))
    with pytest.raises(errors.QueueFull) as refused:
        await mailbox.submit_background(ask("t", "three"))
    assert refused.value.retryable
    assert (await room.texts(), len(await room.rows())) == (words, 3)
    executor.release.set()


async def test_a_dedupe_key_refuses_the_same_work_on_its_thread_while_it_is_open_and_not_after(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    request = ask("t", "once", dedupe_key="order-7")
    first = await mailbox.submit_background(request)
    await mailbox.submit_background(ask("other", "once", dedupe_key="order-7"))
    with pytest.raises(errors.DedupeKeyInUse):
        await mailbox.submit_background(request)
    assert await room.texts() == ["once"]
    executor.release.set()
    await room.acked(first)
    await room.acked(await mailbox.submit_background(request))


async def test_draining_lets_runs_end_within_the_grace_time(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    result, waiting = [await mailbox.submit_background(ask()) for _ in range(2)]
    await executor.started.get()
    async with asyncio.TaskGroup() as group:
        group.create_task(mailbox.drain(timedelta(seconds=30)))
        await asyncio.sleep(0)
        with pytest.raises(errors.MailboxClosed):
            await mailbox.submit_background(ask("other", "too late"))
        executor.release.set()
    assert [(await room.row(one)).status for one in (result, waiting)] == [ACKED, QUEUED]


async def test_a_run_that_does_not_end_in_time_is_given_back_with_no_attempt_counted(room):
    executor, heir = Blocking(), Counting()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(ask())
    await executor.started.get()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(mailbox.drain(timedelta(seconds=30)))
        while not task.done():
            room.passes(seconds=1)
            await asyncio.sleep(0)
    row = await room.row(result)
    assert (row.status, row.attempt_count, row.run_status) == (QUEUED, 0, None)
    assert await room.mailbox(heir, consumer_id="heir").recover() == 0
    await room.acked(result)
    assert heir.run_count == 1
