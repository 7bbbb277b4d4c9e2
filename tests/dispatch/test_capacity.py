"""How much is done at once: bounds, fairness, full queues, budgets, and leaving in good order."""

import asyncio
from datetime import timedelta

import pytest

from dispatch_room import (
    AgentRunResult,
    Blocking,
    Counting,
    Deaf,
    RunActivation,
    dispatch_in,
    dispatch_that,
    done,
    eventually,
)
from postroom.contracts.budgets import Budget, BudgetScope
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import DedupeKeyInUse, MailboxClosed, QueueFull
from postroom.contracts.runs import RunStatus, Usage, WaitingReason
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import MailboxConfig
from postroom.testing.run_faults import with_parts


class Gauge(Deaf):
    """Counts how many run at once, in all and by tenant; each waits to be let go."""

    def __init__(self) -> None:
        super().__init__()
        self.now: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self.total_peak = 0
        self.go = asyncio.Semaphore(0)

    async def execute(self, activation, sink):
        tenant = activation.delivery.tenant
        self.now[tenant] = self.now.get(tenant, 0) + 1
        self.peak[tenant] = max(self.peak.get(tenant, 0), self.now[tenant])
        self.total_peak = max(self.total_peak, sum(self.now.values()))
        await self.go.acquire()
        self.now[tenant] -= 1
        return done(activation)


async def all_acked(room, results):
    for result in results:
        await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)


async def test_no_more_runs_execute_at_once_than_may_and_all_come_to_their_turn(room):
    executor = Gauge()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=3))
    results = [await mailbox.submit_background(RunActivation.new(f"t{n}", ["go"])) for n in range(12)]

    async def all_slots_taken():
        return sum(executor.now.values()) == 3 or None

    await eventually(all_slots_taken)
    for _ in results:
        executor.go.release()
    await all_acked(room, results)
    assert executor.total_peak == 3
    assert executor.run_count == 12


async def test_a_busy_thread_does_not_keep_others_waiting(room):
    executor = Gauge()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=1))
    busy = [await mailbox.submit_background(RunActivation.new("busy", [str(n)])) for n in range(4)]
    quiet = await mailbox.submit_background(RunActivation.new("quiet", ["me too"]))
    for _ in range(5):
        executor.go.release()
    await all_acked(room, [*busy, quiet])
    assert [one.thread_id for one in executor.activations][:2] == ["busy", "quiet"]


async def test_a_tenant_at_its_bound_does_not_keep_others_waiting(room):
    executor = Gauge()
    config = MailboxConfig(max_concurrent_runs=8, max_concurrent_runs_per_tenant=2)
    mailbox = room.mailbox(executor, config=config)
    results = []
    for number in range(6):
        request = RunActivation.new(f"a{number}", ["go"]).delivered(tenant="acme")
        results.append(await mailbox.submit_background(request))
    other = await mailbox.submit_background(RunActivation.new("b", ["go"]).delivered(tenant="other"))
    assert other.status == "running"

    async def both_slots_taken():
        return executor.now == {"acme": 2, "other": 1} or None

    await eventually(both_slots_taken)
    for _ in range(7):
        executor.go.release()
    await all_acked(room, [*results, other])
    assert executor.peak == {"acme": 2, "other": 1}
    rows = [await room.stores.dispatches.load_dispatch(result.dispatch_id) for result in results]
    assert {row.attempt_count for row in rows} == {0}


async def test_a_tenant_that_is_found_at_its_bound_only_after_the_claim_is_given_back_uncounted(room):
    executor = Gauge()
    config = MailboxConfig(max_concurrent_runs_per_tenant=1)
    writer = room.mailbox(Counting(), consumer_id="writer", config=MailboxConfig(max_concurrent_runs=0))
    mailbox = room.mailbox(executor, config=config)
    results = []
    for number in range(3):
        request = RunActivation.new(f"a{number}", ["go"]).delivered(tenant="acme")
        results.append(await writer.submit_background(request))
    await mailbox.poll()
    assert executor.run_count <= 1
    for _ in range(3):
        executor.go.release()
    await all_acked(room, results)
    assert executor.peak == {"acme": 1}
    for result in results:
        assert (await room.stores.dispatches.load_dispatch(result.dispatch_id)).attempt_count == 0


async def test_a_full_queue_refuses_and_writes_nothing(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_queued_per_thread=2))
    await mailbox.submit_background(RunActivation.new("t", ["running"]))
    await executor.started.get()
    for word in ("one", "two"):
        await mailbox.submit_background(RunActivation.new("t", [word]))
    with pytest.raises(QueueFull) as refused:
        await mailbox.submit_background(RunActivation.new("t", ["three"]))
    assert refused.value.retryable
    assert [m.text() for m in await room.stores.threads.load_messages("t")] == ["running", "one", "two"]
    assert len(await mailbox.list_dispatches("t")) == 3
    executor.release.set()


async def test_a_dedupe_key_refuses_the_same_work_while_it_is_open_and_not_after(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    request = RunActivation.new("t", ["once"]).delivered(dedupe_key="order-7")
    first = await mailbox.submit_background(request)
    await executor.started.get()
    with pytest.raises(DedupeKeyInUse):
        await mailbox.submit_background(request)
    assert len(await room.stores.threads.load_messages("t")) == 1
    executor.release.set()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    second = await mailbox.submit_background(request)
    await dispatch_in(room.stores, second.dispatch_id, RunDispatchStatus.ACKED)


async def test_a_dedupe_key_counts_on_its_own_thread(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    for thread_id in ("t", "other"):
        await mailbox.submit_background(
            RunActivation.new(thread_id, ["once"]).delivered(dedupe_key="order-7")
        )
        await executor.started.get()
    executor.release.set()


async def test_a_foreground_submission_starts_at_once_also_beyond_the_bounds_of_the_process(room):
    gauge = Gauge()
    config = MailboxConfig(max_concurrent_runs=1, max_concurrent_runs_per_tenant=1)
    mailbox = room.mailbox(gauge, config=config)
    first = await mailbox.submit_background(RunActivation.new("t", ["go"]).delivered(tenant="acme"))
    waits = await mailbox.submit_background(RunActivation.new("behind", ["go"]).delivered(tenant="acme"))
    now, _ = await mailbox.submit(RunActivation.new("now", ["go"]).delivered(tenant="acme"))

    async def both() -> bool:
        return gauge.total_peak == 2

    await eventually(both)
    assert (await room.stores.dispatches.load_dispatch(waits.dispatch_id)).status is RunDispatchStatus.QUEUED
    for _ in range(3):
        gauge.go.release()
    await all_acked(room, [first, now])


async def test_max_attempts_of_one_submission(room):
    class Fails(Deaf):
        async def execute(self, activation, sink):
            raise ValueError("nobody knows why")

    executor = Fails()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]).delivered(max_attempts=2))
    await dispatch_that(room.stores, result.dispatch_id, lambda row: row.attempt_count == 1)
    await mailbox.settled()
    room.clock.advance(timedelta(minutes=1))
    await mailbox.poll()
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    await mailbox.settled()
    assert (executor.run_count, row.attempt_count) == (2, 2)
    run = await room.stores.threads.load_run(result.run_id)
    assert (run.status, run.termination.type) == (RunStatus.DONE, "error")
    assert "nobody knows why" in run.termination.value


class Spender(Deaf):
    """Uses up 60 tokens a run."""

    async def execute(self, activation, sink) -> AgentRunResult:
        from postroom.contracts.records import replace

        return replace(done(activation), usage=Usage(input_tokens=40, output_tokens=20))


async def test_a_budget_that_is_used_up_pauses_and_asks_and_a_yes_lets_the_run_go_on(room):
    executor = Spender()
    budget = Budget(per=BudgetScope.TENANT, tokens=100)
    mailbox = room.mailbox(executor, config=MailboxConfig(budgets=(budget,)))

    async def submit(thread_id: str, **changes):
        request = RunActivation.new(thread_id, ["go"], **changes).delivered(tenant="acme")
        result = await mailbox.submit_background(request)
        row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
        return row, await room.stores.threads.load_run(result.run_id)

    for number in range(2):
        _, run = await submit(f"t{number}")
        assert run.status is RunStatus.DONE
    row, run = await submit("t2")
    assert executor.run_count == 2
    assert (run.status, row.run_status) == (RunStatus.WAITING, RunStatus.WAITING)
    assert run.waiting.reason is WaitingReason.MANUAL_PAUSE
    ticket = run.waiting.tickets[0]
    assert (ticket.arguments["allowed"], ticket.arguments["spent"]) == (100, 120)
    assert (await room.stores.threads.spending(["tenant:acme"]))["tenant:acme"].runs == 2
    yes = ToolCallResume(decision_id="yes", result={"approved": True})
    decided = RunActivation.new("t2", [], continue_run_id=run.run_id, decisions=[(ticket.ticket_id, yes)])
    result = await mailbox.submit_background(decided.delivered(tenant="acme"))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert (await room.stores.threads.load_run(run.run_id)).status is RunStatus.DONE
    assert executor.run_count == 3


async def test_a_no_to_the_budget_leaves_the_run_waiting(room):
    executor = Spender()
    mailbox = room.mailbox(executor, config=MailboxConfig(budgets=(Budget(per=BudgetScope.THREAD, runs=1),)))
    for word in ("one", "two"):
        result = await mailbox.submit_background(RunActivation.new("t", [word]))
        await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    run = await room.stores.threads.load_run(result.run_id)
    no = ToolCallResume(decision_id="no", result={"approved": False})
    decided = RunActivation.new(
        "t", [], continue_run_id=run.run_id, decisions=[(run.waiting.tickets[0].ticket_id, no)]
    )
    result = await mailbox.submit_background(decided)
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert (await room.stores.threads.load_run(run.run_id)).status is RunStatus.WAITING
    assert executor.run_count == 1


async def test_draining_lets_runs_end_within_the_grace_time(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    waiting = await mailbox.submit_background(RunActivation.new("t", ["not any more"]))
    await executor.started.get()
    async with asyncio.TaskGroup() as group:
        group.create_task(mailbox.drain(timedelta(seconds=30)))
        await asyncio.sleep(0)
        with pytest.raises(MailboxClosed):
            await mailbox.submit_background(RunActivation.new("other", ["too late"]))
        executor.release.set()
    row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
    assert row.status is RunDispatchStatus.ACKED
    assert (
        await room.stores.dispatches.load_dispatch(waiting.dispatch_id)
    ).status is RunDispatchStatus.QUEUED


async def test_a_run_that_does_not_end_in_time_is_given_back_with_no_attempt_counted(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(mailbox.drain(timedelta(seconds=30)))
        while not task.done():
            room.clock.advance(timedelta(seconds=1))
            await asyncio.sleep(0)
    row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
    assert (row.status, row.attempt_count, row.run_status) == (RunDispatchStatus.QUEUED, 0, None)
    heir = Counting()
    other = room.mailbox(heir, consumer_id="heir")
    assert await other.recover() == 0
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert heir.run_count == 1


class Hints:
    """Tells for how long it was asked to wait for work."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def wait(self, timeout_ms: int) -> None:
        self.asked.append(timeout_ms)
        await asyncio.sleep(0)


async def test_due_work_that_may_not_start_is_not_asked_for_again_and_again(room):
    """A tenant at its bound has due work; the poller rests, and does not spin."""
    executor, hints = Gauge(), Hints()
    stores = with_parts(room.stores, wakeups=hints)
    mailbox = room.mailbox(executor, stores=stores, config=MailboxConfig(max_concurrent_runs_per_tenant=1))
    results = []
    for number in range(3):
        request = RunActivation.new(f"a{number}", ["go"]).delivered(tenant="acme")
        results.append(await mailbox.submit_background(request))
    await mailbox.start_lifecycle_ready()

    async def asked_three_times():
        return len(hints.asked) > 3 or None

    await eventually(asked_three_times)
    assert set(hints.asked) == {1_000}
    for _ in results:
        executor.go.release()
    await all_acked(room, results)


async def test_due_work_that_may_not_start_does_not_hide_what_may(room):
    executor = Gauge()
    writer = room.mailbox(Counting(), consumer_id="writer", config=MailboxConfig(max_concurrent_runs=0))
    results = []
    for number in range(12):
        request = RunActivation.new(f"a{number:02d}", ["go"]).delivered(tenant="acme")
        results.append(await writer.submit_background(request))
        room.clock.advance(timedelta(milliseconds=1))
    other = await writer.submit_background(RunActivation.new("z", ["go"]).delivered(tenant="other"))
    config = MailboxConfig(max_concurrent_runs=4, max_concurrent_runs_per_tenant=1)
    mailbox = room.mailbox(executor, config=config)

    async def started():
        await mailbox.poll()
        return executor.now.get("other")

    assert await eventually(started) == 1
    await mailbox.start_lifecycle_ready()
    for _ in range(13):
        executor.go.release()
    await all_acked(room, [*results, other])


async def test_a_tenant_with_a_long_queue_does_not_hide_the_delayed_run_of_another(room):
    executor = Gauge()
    writer = room.mailbox(Counting(), consumer_id="writer", config=MailboxConfig(max_concurrent_runs=0))
    async with asyncio.TaskGroup() as group:
        for number in range(210):
            request = RunActivation.new(f"a{number:03d}", ["go"]).delivered(tenant="acme")
            group.create_task(writer.submit_background(request))
    config = MailboxConfig(max_concurrent_runs=10, max_concurrent_runs_per_tenant=2)
    mailbox = room.mailbox(executor, config=config)
    await mailbox.poll()
    late = RunActivation.new("late", ["go"]).delivered(tenant="other", delay_ms=1_000)
    late_id = (await writer.submit_background(late)).dispatch_id
    room.clock.advance(timedelta(seconds=2))
    assert await mailbox.poll() == 1
    assert (await dispatch_in(room.stores, late_id, RunDispatchStatus.CLAIMED)).tenant == "other"


async def test_tenants_share_the_slots_also_without_a_bound_of_each(room):
    executor = Gauge()
    writer = room.mailbox(Counting(), consumer_id="writer", config=MailboxConfig(max_concurrent_runs=0))
    for number in range(30):
        request = RunActivation.new(f"a{number:02d}", ["go"]).delivered(tenant="acme")
        await writer.submit_background(request)
        await writer.submit_background(RunActivation.new(f"n{number:02d}", ["go"]))
        room.clock.advance(timedelta(milliseconds=1))
    for number in range(2):
        request = RunActivation.new(f"b{number}", ["go"]).delivered(tenant="other")
        await writer.submit_background(request)
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=6))
    await mailbox.poll()

    async def all_slots_taken():
        return sum(executor.now.values()) == 6 or None

    await eventually(all_slots_taken)
    assert executor.now == {"acme": 2, "": 2, "other": 2}


async def test_a_thread_with_a_long_queue_gives_way_to_what_became_due_meanwhile(room):
    """All slots are taken by one thread that always has more to do; another tenant's run was delayed."""
    executor = Gauge()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=1))
    for number in range(20):
        await mailbox.submit_background(RunActivation.new("busy", [str(number)]).delivered(tenant="acme"))
    late = RunActivation.new("late", ["go"]).delivered(tenant="other", delay_ms=500)
    late_id = (await mailbox.submit_background(late)).dispatch_id
    await mailbox.start_lifecycle_ready()
    room.clock.advance(timedelta(seconds=2))
    for _ in range(4):
        executor.go.release()
    await dispatch_in(room.stores, late_id, RunDispatchStatus.ACKED)
    for _ in range(20):
        executor.go.release()


async def test_two_mailboxes_that_were_given_no_names_have_different_ones(memory_room):
    first, second = (memory_room.mailbox(Counting(), consumer_id=None) for _ in range(2))
    assert first.consumer_id != second.consumer_id
