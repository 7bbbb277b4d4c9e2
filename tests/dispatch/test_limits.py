"""Limits hold for all workers of a database: how many runs execute at once, and how many begin in a time."""

from collections import Counter
from datetime import timedelta

import pytest

from dispatch_room import Counting, Deaf, RunActivation, dispatch_in, done, eventually
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import ConfigError
from postroom.contracts.limits import Limit, LimitScope
from postroom.dispatch.config import MailboxConfig

SECOND = timedelta(seconds=1)
NO_WORK = MailboxConfig(max_concurrent_runs=0)


class Gauge(Deaf):
    """Counts how many of each tenant and key execute; each goes on when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.may_end = 0

    async def execute(self, activation, sink):
        delivery = activation.delivery
        for name in ("all", delivery.tenant, delivery.limit_key):
            self.now[name] += 1
            self.peak[name] = max(self.peak[name], self.now[name])

        async def may_end():
            return self.may_end > 0 or None

        await eventually(may_end)
        self.may_end -= 1
        for name in ("all", delivery.tenant, delivery.limit_key):
            self.now[name] -= 1
        return done(activation)


async def queued(room, count: int, prefix: str = "t", **delivery) -> list[str]:
    writer = room.mailbox(Counting(), consumer_id="writer", config=NO_WORK)
    ids = []
    for number in range(count):
        request = RunActivation.new(f"{prefix}{number}", ["go"]).delivered(**delivery)
        ids.append((await writer.submit_background(request)).dispatch_id)
    return ids


def limited(*limits: Limit) -> MailboxConfig:
    return MailboxConfig(limits=limits)


async def two_workers(room, executor, *limits: Limit):
    workers = [room.mailbox(executor, consumer_id=name, config=limited(*limits)) for name in ("one", "two")]
    for worker in workers:
        await worker.start_lifecycle_ready()
    return workers


async def test_a_limit_on_what_executes_at_once_holds_for_two_workers_of_one_database(room):
    ids, executor = await queued(room, 12), Gauge()
    await two_workers(room, executor, Limit(per=LimitScope.ALL, at_once=3))

    async def is_full():
        return executor.now["all"] == 3 or None

    await eventually(is_full)
    executor.may_end = 12
    for one in ids:
        await dispatch_in(room.stores, one, RunDispatchStatus.ACKED)
    assert executor.peak["all"] == 3


async def test_a_limit_counts_each_tenant_and_each_key_by_itself(room):
    acme = await queued(room, 4, "a", tenant="acme", limit_key="model")
    other = await queued(room, 4, "b", tenant="other", limit_key="model")
    free = await queued(room, 4, "c", tenant="other")
    executor = Gauge()
    limits = (Limit(per=LimitScope.TENANT, at_once=3), Limit(per=LimitScope.KEY, at_once=2))
    await two_workers(room, executor, *limits)

    async def is_full():
        return (executor.now["model"], executor.now["other"]) == (2, 3) or executor.now["all"] == 5 or None

    await eventually(is_full)
    executor.may_end = 12
    for one in (*acme, *other, *free):
        await dispatch_in(room.stores, one, RunDispatchStatus.ACKED)
    assert executor.peak["model"] == 2
    assert max(executor.peak["acme"], executor.peak["other"]) <= 3


async def test_what_a_key_at_its_limit_has_queued_hides_nothing_of_others(room):
    await queued(room, 20, "a", limit_key="model")
    [late] = await queued(room, 1, "z", limit_key="other")
    executor = Gauge()
    config = MailboxConfig(max_concurrent_runs=4, limits=(Limit(per=LimitScope.KEY, at_once=1),))
    mailbox = room.mailbox(executor, config=config)
    await mailbox.poll()
    await mailbox.poll()
    await dispatch_in(room.stores, late, RunDispatchStatus.CLAIMED)
    executor.may_end = 2
    await mailbox.settled()


async def test_no_more_runs_begin_in_any_span_than_may(room):
    ids, executor, begun = await queued(room, 7), Counting(), []
    period = 10 * SECOND
    workers = [
        room.mailbox(
            executor, consumer_id=name, config=limited(Limit(per=LimitScope.ALL, starts=3, period=period))
        )
        for name in ("one", "two")
    ]
    for _ in range(30):
        for worker in workers:
            await worker.poll()
            await worker.settled()
        begun += [room.clock.now()] * (executor.run_count - len(begun))
        room.clock.advance(SECOND)
    assert len(begun) == 7
    assert all(later - earlier >= 10_000 for earlier, later in zip(begun, begun[3:], strict=False))
    assert begun[3] - begun[0] == 10_000
    for one in ids:
        await dispatch_in(room.stores, one, RunDispatchStatus.ACKED)


async def test_what_began_longer_ago_than_a_period_is_forgotten(room):
    await queued(room, 2, limit_key="model")
    limit = Limit(per=LimitScope.KEY, starts=5, period=10 * SECOND)
    mailbox = room.mailbox(Counting(), config=limited(limit))
    await mailbox.poll()
    await mailbox.settled()
    for number in (2, 0):
        assert (await room.stores.store.read(lambda tx: tx.runs.dispatches.starts("key:model", 5)))[
            0
        ] == number
        room.clock.advance(11 * SECOND)
        await mailbox.run_gc()


async def test_who_is_kept_back_by_a_limit_is_told_so(room):
    first, second = await queued(room, 2, limit_key="model")
    executor = Counting()
    limit = Limit(per=LimitScope.KEY, starts=1, period=60 * SECOND)
    mailbox = room.mailbox(executor, config=limited(limit))
    await mailbox.poll()
    await dispatch_in(room.stores, first, RunDispatchStatus.ACKED)
    reason = await mailbox.why_not(second)
    assert reason.why == "at_limit"
    assert reason.until == room.clock.now() + 60_000
    assert "key:model" in reason.text


@pytest.mark.parametrize(
    "given",
    [{}, {"starts": 3}, {"period": SECOND}, {"at_once": 0}, {"starts": 0, "period": SECOND},
     {"starts": 1, "period": timedelta(0)}],
)  # fmt: skip
def test_a_limit_that_limits_nothing_is_refused(given):
    with pytest.raises(ConfigError):
        Limit(per=LimitScope.ALL, **given)
