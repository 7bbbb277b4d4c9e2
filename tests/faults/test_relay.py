"""The relay: an effect is performed at least once, in its order, whatever handlers, clocks and processes do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.run_backends import Place
from machine import PATIENCE
from postroom.contracts.errors import CommitUnknown, StoreFull, StoreUnavailable
from postroom.contracts.outbox import Backlog, OutboxDraft, OutboxMessage, OutboxStatus, line_lock
from postroom.relay import NotPerformed, Outcome, Performed, Relay
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.store import Joined, SqlStore, Transaction
from postroom.testing import ManualClock

KIND, TARGET = "fake", "x"
LEASE = timedelta(seconds=30)


@dataclass
class FakeHandler:
    """A fake for tests: notes what it is given, and does what the test says."""

    act: Callable[[OutboxMessage], Any] = lambda row: Performed()
    lease: timedelta = LEASE
    at_once: int = 32
    together: bool = False
    retries: tuple[timedelta, timedelta] = (timedelta(seconds=1), timedelta(seconds=60))
    targets: tuple[str, ...] | None = None
    given: list[int] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def serves(self, target: str) -> bool:
        return self.targets is None or target in self.targets

    async def perform(self, rows: Sequence[OutboxMessage]) -> Outcome:
        self.batches.append(len(rows))
        self.given += [row.payload["n"] for row in rows]
        self.marked += [row.payload["n"] for row in rows if row.may_have_arrived]
        done = self.act(rows[0])
        return await done if asyncio.iscoroutine(done) else done


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqlStore]:
    prepared = Place("sqlite", tmp_path).prepared(clock)
    yield prepared.held.runs.store
    prepared.close()


async def put(store: SqlStore, *numbers: int, **more: Any) -> None:
    drafts = [OutboxDraft(**{"kind": KIND, "target": TARGET, "payload": {"n": n}, **more}) for n in numbers]
    await store.write(lambda tx: tx.outbox.enqueue(drafts))


async def backlog(store: SqlStore, kind: str = KIND) -> Backlog:
    return await store.read(lambda tx: tx.outbox.backlog(kind))


async def rows(store: SqlStore) -> list[OutboxMessage]:
    return list(await store.read(lambda tx: tx.outbox.open(KIND, limit=99)))


@asynccontextmanager
async def serving(*relays: Relay) -> AsyncIterator[None]:
    """Run relays, for half a minute at most."""
    stopping = asyncio.Event()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for relay in relays:
            group.create_task(relay.serve(stopping))
        try:
            yield
        finally:
            stopping.set()
            for relay in relays:
                relay.hint()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


class Dying:
    """A store whose process dies when the end of an effect is to be written."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.clock, self.changes, self.read = store.clock, store.changes, store.read

    async def write(self, change: Any, *, key: str = "") -> Any:
        if key == line_lock(KIND, TARGET):
            raise asyncio.CancelledError
        return await self._store.write(change, key=key)


async def test_a_relay_that_is_alone_waits_for_no_lease_of_the_one_before(store: SqlStore) -> None:
    await put(store, 1)
    await Relay(Dying(store), {KIND: FakeHandler()}).drain()  # type: ignore[arg-type]
    again = FakeHandler()
    async with serving(Relay(store, {KIND: again}, is_exclusive=True)):
        await until(lambda: bool(again.given))
    assert (again.given, again.marked) == ([1], [1])


async def test_a_handler_that_hangs_is_cut_off_and_keeps_nobody_else_waiting(
    store: SqlStore, clock: ManualClock
) -> None:
    ended = asyncio.Event()

    async def hangs(row: OutboxMessage) -> Outcome:
        if row.payload["n"] == 1 and not row.may_have_arrived:
            ended.set()
            await asyncio.Event().wait()
        return Performed()

    handler = FakeHandler(act=hangs, lease=timedelta(milliseconds=300))
    await put(store, 1, order_key="a")
    await put(store, 2, order_key="b")
    await put(store, 3, target="y")
    relay = Relay(store, {KIND: handler})
    async with serving(relay):
        await until(lambda: {2, 3} <= set(handler.given))
        await put(store, 4, order_key="c")
        await until(lambda: 4 in handler.given)
        while (await backlog(store)).waiting != 1 or not (await rows(store))[0].last_error:
            await asyncio.sleep(0)
        [row] = await rows(store)
        assert (row.last_error, row.may_have_arrived) == (
            "performing the effect took longer than 0.3 s",
            True,
        )
        clock.advance(timedelta(seconds=1))
        relay.hint()
        await until(lambda: handler.marked == [1])
    assert (await backlog(store)).waiting == 0


async def test_a_handler_that_raises_for_ever_is_given_up_and_the_others_go_on(
    store: SqlStore, clock: ManualClock
) -> None:
    def raises(row: OutboxMessage) -> Outcome:
        if row.payload["n"] == 1:
            raise KeyError("a fault of ours")
        return Performed()

    handler = FakeHandler(act=raises)
    relay = Relay(store, {KIND: handler})
    await put(store, 1, order_key="a", max_attempts=3)
    await put(store, 2, order_key="a")
    await put(store, 3, order_key="b")
    assert await relay.drain() == 1
    for pause in (1, 2):
        clock.advance(timedelta(seconds=pause) - timedelta(milliseconds=1))
        assert await relay.drain() == 0
        clock.advance(timedelta(milliseconds=1))
        await relay.drain()
    assert handler.given == [1, 3, 1, 1, 2]
    [dead] = await store.read(lambda tx: tx.outbox.dead_letters(kind=KIND, after="", limit=9))
    assert (dead.payload, dead.last_error) == ({"n": 1}, "KeyError inside postroom; its log has the cause")
    assert await backlog(store) == Backlog(waiting=0, oldest_at=None, dead=1)
    await store.write(lambda tx: tx.outbox.revive(dead.outbox_id))
    handler.act = lambda row: Performed()
    assert await relay.drain() == 1


async def test_an_effect_behind_another_of_its_order_key_costs_no_change_until_it_is_its_turn(
    store: SqlStore,
) -> None:
    """While an answer is on its way, the next of its session is not asked for by a change that finds nothing."""
    begun, free = asyncio.Event(), asyncio.Event()
    claims: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self.clock, self.changes, self.read = store.clock, store.changes, store.read

        async def write(self, change: Any, *, key: str = "") -> Any:
            done = await store.write(change, key=key)
            if key == "outbox":
                claims.append(len(done))
            return done

    async def waits(row: OutboxMessage) -> Outcome:
        begun.set()
        await free.wait()
        return Performed()

    relays = [Relay(Counting(), {KIND: FakeHandler(act=waits)}) for _ in range(2)]  # type: ignore[arg-type]
    await put(store, 1, order_key="a")
    drained = asyncio.ensure_future(relays[0].drain())
    await begun.wait()
    await put(store, 2, order_key="a")
    assert await relays[1].drain() == 0
    free.set()
    assert await drained == 2
    assert claims == [1, 1]


async def test_effects_without_an_order_key_are_performed_in_their_order(store: SqlStore) -> None:
    handler = FakeHandler()
    await put(store, *range(20))
    assert await Relay(store, {KIND: handler}).drain() == 20
    assert handler.given == list(range(20))


async def test_what_a_handler_writes_is_there_with_the_end_of_the_row_or_not_at_all(
    store: SqlStore, clock: ManualClock
) -> None:
    def also(tx: Transaction) -> None:
        tx.outbox.enqueue([OutboxDraft(kind="next", target="y", payload={"n": 2})])
        if refusals:
            raise refusals[-1]

    refusals = [StoreFull("not now"), StoreUnavailable("not now")]
    handler = FakeHandler(act=lambda row: Performed(also=Joined(locks=("b", "a"), change=also)))
    relay = Relay(store, {KIND: handler})
    await put(store, 1)
    for _ in range(2):
        assert await relay.drain() == 0
        assert (await backlog(store, "next")).waiting == 0
        refusals.pop()
        clock.advance(LEASE)
    assert await relay.drain() == 1
    assert (await backlog(store, "next")).waiting == 1
    assert handler.marked == [1, 1]


async def test_a_full_queue_is_performed_whole_and_no_target_hides_another(store: SqlStore) -> None:
    def acts(row: OutboxMessage) -> Outcome:
        return NotPerformed(error="broken") if row.target == TARGET else Performed()

    handler = FakeHandler(act=acts, together=True, at_once=200)
    await put(store, *range(5_000))
    await put(store, *range(5_000, 5_300), target="y")
    assert await Relay(store, {KIND: handler}).drain() == 300
    assert sorted(handler.batches) == [100, 200, 200]
    assert (await backlog(store)).waiting == 5_000
    handler.act = lambda row: Performed()
    again = Relay(store, {KIND: handler})
    assert await again.drain() == 4_800  # those that were tried rest for a second


class Crossing:
    """A store where the end of an effect is written while the claim that renews it is on its way, or before."""

    def __init__(self, store: SqlStore, *, claim_returns_last: bool) -> None:
        self.clock, self.changes, self.read = store.clock, store.changes, store.read
        self._store, self._claim_returns_last = store, claim_returns_last
        self.claims = 0
        self.ending, self.ended, self.renewed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write(self, change: Any, *, key: str = "") -> Any:
        is_end = key == line_lock(KIND, TARGET)
        if is_end:
            self.ending.set()
            await self.renewed.wait()
        done = await self._store.write(change, key=key)
        if is_end:
            self.ended.set()
        elif done:
            self.claims += 1
            if self.claims == 2:
                self.renewed.set()
                if self._claim_returns_last:
                    await self.ended.wait()
        return done


@pytest.mark.parametrize("claim_returns_last", [True, False], ids=["end first", "claim first"])
@pytest.mark.parametrize("outcome", [Performed(), NotPerformed(error="no")], ids=["done", "failed"])
async def test_an_effect_whose_claim_is_renewed_as_it_ends_ends_once(
    store: SqlStore, clock: ManualClock, outcome: Outcome, claim_returns_last: bool
) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    async def waits(row: OutboxMessage) -> Outcome:
        begun.set()
        await free.wait()
        return outcome

    handler, crossing = FakeHandler(act=waits), Crossing(store, claim_returns_last=claim_returns_last)
    relay = Relay(crossing, {KIND: handler})  # type: ignore[arg-type]
    await put(store, 1)
    async with serving(relay):
        await begun.wait()
        free.set()
        await crossing.ending.wait()  # under the first claim
        clock.advance(LEASE)
        relay.hint()
        await crossing.ended.wait()
    assert (handler.given, crossing.claims) == ([1], 2)
    left = [(row.status, row.attempt_count, row.last_error) for row in await rows(store)]
    assert left == ([] if isinstance(outcome, Performed) else [(OutboxStatus.PENDING, 2, "no")])


class SlowAnswer:
    """A store that answers the end of a failed effect only after the effect has been claimed again."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.clock, self.changes, self.read = store.clock, store.changes, store.read
        self.claims = 0
        self.ended, self.claimed_again = asyncio.Event(), asyncio.Event()

    async def write(self, change: Any, *, key: str = "") -> Any:
        done = await self._store.write(change, key=key)
        if key == line_lock(KIND, TARGET) and not self.ended.is_set():
            self.ended.set()
            await self.claimed_again.wait()
        elif isinstance(done, list):
            self.claims += len(done)
            if self.claims == 2:
                asyncio.get_running_loop().call_soon(self.claimed_again.set)
        return done


async def test_an_effect_that_is_claimed_again_before_its_failure_is_answered_is_performed(
    store: SqlStore, clock: ManualClock
) -> None:
    outcomes = [NotPerformed(error="no"), Performed()]
    handler, slow = FakeHandler(act=lambda row: outcomes.pop(0)), SlowAnswer(store)
    relay = Relay(slow, {KIND: handler})  # type: ignore[arg-type]
    await put(store, 1)
    async with serving(relay):
        await slow.ended.wait()
        clock.advance(timedelta(seconds=1))
        relay.hint()
        await until(lambda: handler.given == [1, 1])
    assert (slow.claims, (await backlog(store)).waiting) == (2, 0)


async def test_an_effect_that_fails_does_not_wait_for_other_effects_without_an_order(
    store: SqlStore, clock: ManualClock
) -> None:
    free = asyncio.Event()

    async def acts(row: OutboxMessage) -> Outcome:
        if row.payload["n"] == 2:
            await free.wait()
        return Performed() if row.attempt_count == 2 or row.payload["n"] == 2 else NotPerformed(error="no")

    handler = FakeHandler(act=acts)
    relay = Relay(store, {KIND: handler})
    await put(store, 1, 2)
    async with serving(relay):
        while not (await rows(store))[0].last_error:
            await asyncio.sleep(0)
        clock.advance(timedelta(seconds=1))
        relay.hint()
        await until(lambda: handler.given.count(1) == 2)
        free.set()
    assert (await backlog(store)).waiting == 0


async def test_a_clock_that_is_set_back_keeps_nothing_waiting_that_was_not_delayed(
    store: SqlStore, clock: ManualClock
) -> None:
    outcomes = [NotPerformed(error="no"), Performed()]
    handler = FakeHandler(act=lambda row: outcomes.pop(0), together=True)
    relay = Relay(store, {KIND: handler})
    await put(store, 1)
    await relay.drain()
    clock.advance(-timedelta(days=1))
    await put(store, 2)
    assert await relay.drain() == 1
    assert handler.given == [1, 2]


async def test_a_target_that_nobody_serves_here_waits(store: SqlStore) -> None:
    handler = FakeHandler(targets=("y",))
    relay = Relay(store, {KIND: handler})
    await put(store, 1)
    await put(store, 2, kind="of another process")
    assert await relay.drain() == 0
    assert [row.attempt_count for row in await rows(store)] == [0]
    handler.targets = None
    assert await relay.drain() == 1


async def test_what_was_performed_is_forgotten_after_a_week_and_its_key_is_free(
    store: SqlStore, clock: ManualClock
) -> None:
    handler = FakeHandler()
    relay = Relay(store, {KIND: handler})
    await put(store, 1, dedupe_key="k")
    assert await relay.drain() == 1
    await put(store, 1, dedupe_key="k")
    clock.advance(timedelta(days=8))
    await put(store, 2)
    assert await relay.drain() == 1  # it looks after old ones too
    await put(store, 3, dedupe_key="k")
    assert await relay.drain() == 1
    assert handler.given == [1, 2, 3]


async def test_a_stop_lets_what_is_under_way_come_to_its_end(store: SqlStore) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    async def waits(row: OutboxMessage) -> Outcome:
        begun.set()
        await free.wait()
        return Performed()

    relay, stopping = Relay(store, {KIND: FakeHandler(act=waits)}), asyncio.Event()
    await put(store, 1)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        served = group.create_task(relay.serve(stopping))
        await begun.wait()
        stopping.set()
        relay.hint()
        await asyncio.sleep(0)
        assert not served.done()
        free.set()
    assert (await backlog(store)).waiting == 0


async def test_two_processes_on_one_postgresql_share_the_work(postgres_dsn: str, a_schema: str) -> None:
    def opened() -> PostgresStore:
        return PostgresStore.open(postgres_dsn, schema=a_schema)

    one, two = await asyncio.to_thread(opened), await asyncio.to_thread(opened)
    handlers = [FakeHandler(at_once=4), FakeHandler(at_once=4)]
    try:
        for number in range(60):
            await put(one.store, number, order_key=str(number % 7))
        relays = [
            Relay(kept.store, {KIND: handler}) for kept, handler in zip((one, two), handlers, strict=True)
        ]
        async with serving(*relays):
            while (await backlog(one.store)).waiting:
                await asyncio.sleep(0)
    finally:
        await asyncio.to_thread(one.close)
        await asyncio.to_thread(two.close)
    first, second = (handler.given for handler in handlers)
    assert sorted([*first, *second]) == list(range(60))
    assert not handlers[0].marked
    assert not handlers[1].marked


class Looks:
    """A store that counts its reads."""

    def __init__(self, store: SqlStore) -> None:
        self._store, self.count = store, 0
        self.clock, self.changes, self.write = store.clock, store.changes, store.write

    async def read(self, look: Any) -> Any:
        self.count += 1
        return await self._store.read(look)


async def test_an_end_with_nothing_behind_it_causes_no_look_and_one_in_line_is_begun_at_once(
    store: SqlStore,
) -> None:
    looks, handler = Looks(store), FakeHandler()
    async with serving(Relay(looks, {KIND: handler})):  # type: ignore[arg-type]
        for number in range(10):
            await put(store, number)
            await until(lambda: len(handler.given) > number)  # noqa: B023 - awaited at once
            while (await backlog(store)).waiting:
                await asyncio.sleep(0)
        assert looks.count <= 21  # one at the start; before, three for each effect
        began = asyncio.get_running_loop().time()
        await put(store, *range(10, 20), order_key="line")
        await until(lambda: len(handler.given) == 20)
        assert (
            asyncio.get_running_loop().time() - began < 8
        )  # each waits for no poll, which comes once a second
    assert handler.given == list(range(20))


async def test_what_is_stored_where_it_is_performed_needs_no_look_and_no_claim(store: SqlStore) -> None:
    """It is stored as claimed: two changes for each effect, and no read after the first."""
    changes, looks, handler = Changes(store), Looks(store), FakeHandler()
    looks.write = changes.write  # type: ignore[method-assign]
    async with serving(Relay(looks, {KIND: handler})):  # type: ignore[arg-type]
        await until(lambda: changes.count > 0)  # it has looked after old ones
        before = looks.count, changes.count
        for number in range(10):
            await put(store, number, order_key=str(number))
            await until(lambda: len(handler.given) > number)  # noqa: B023 - awaited at once
            while (await backlog(store)).waiting:
                await asyncio.sleep(0)
        assert changes.count - before[1] == 10  # each end
        assert looks.count - before[0] <= 2  # a poll may come
    assert (handler.given, handler.marked) == (list(range(10)), [])


class Changes:
    """A store that counts its changes."""

    def __init__(self, store: SqlStore) -> None:
        self._store, self.count = store, 0

    async def write(self, change: Any, *, key: str = "") -> Any:
        self.count += 1
        return await self._store.write(change, key=key)


async def test_what_was_stored_without_an_answer_is_given_back_and_performed_once(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = store.engine  # type: ignore[attr-defined]
    durable, handler = engine.write, FakeHandler()

    async def lost(change: Any, *, key: str = "", committed: Any = None) -> Any:
        monkeypatch.setattr(engine, "write", durable)
        await durable(change, key=key)
        raise CommitUnknown("the connection broke before the answer")

    async with serving(Relay(store, {KIND: handler})):
        await asyncio.sleep(0)
        monkeypatch.setattr(engine, "write", lost)
        with pytest.raises(CommitUnknown):
            await put(store, 1)
        while (await backlog(store)).waiting:
            await asyncio.sleep(0)
    assert (handler.given, handler.marked) == ([1], [])


async def test_what_is_stored_as_its_relay_stops_waits_unmarked_for_the_next(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = store.engine  # type: ignore[attr-defined]
    handler = FakeHandler()
    relay, stopping, durable = Relay(store, {KIND: handler}), asyncio.Event(), engine.write
    await put(store, 0)

    async def stops(change: Any, *, key: str = "", committed: Any = None) -> Any:
        def stop_and_tell() -> None:
            stopping.set()
            committed()

        monkeypatch.setattr(engine, "write", durable)
        return await durable(change, key=key, committed=stop_and_tell)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(relay.serve(stopping))
        await until(lambda: handler.given == [0])  # its first round has ended
        await relay.idle(KIND)
        monkeypatch.setattr(engine, "write", stops)
        await put(store, 1)
        relay.hint()
        while [row.status for row in await rows(store)] != [OutboxStatus.PENDING]:
            await asyncio.sleep(0)
    again = FakeHandler()
    assert await Relay(store, {KIND: again}).drain() == 1
    assert again.marked == []


async def test_no_more_are_performed_at_once_than_a_handler_takes_however_many_are_stored_together(
    store: SqlStore,
) -> None:
    free, most = asyncio.Event(), 0
    at_work: set[int] = set()

    async def waits(row: OutboxMessage) -> Outcome:
        nonlocal most
        at_work.add(row.payload["n"])
        most = max(most, len(at_work))
        await free.wait()
        at_work.discard(row.payload["n"])
        return Performed()

    handler = FakeHandler(act=waits, at_once=3)
    async with serving(Relay(store, {KIND: handler})):
        await asyncio.sleep(0)
        await put(store, *range(9))
        await until(lambda: len(at_work) == 3)
        free.set()
        await until(lambda: len(handler.given) == 9)
    assert most == 3
    assert (await backlog(store)).waiting == 0


async def test_a_batch_that_this_process_stores_is_performed_without_a_look_for_it(store: SqlStore) -> None:
    handler = FakeHandler(together=True, at_once=4)
    relay = Relay(store, {KIND: handler})
    async with serving(relay):
        await until(lambda: relay.lease_ms(KIND, TARGET) is not None)
        await put(store, *range(10))
        assert {row.status for row in await rows(store)} <= {OutboxStatus.CLAIMED}
        await until(lambda: len(handler.given) == 10)
    assert handler.batches == [4, 4, 2]
    assert (await backlog(store)).waiting == 0


async def test_a_relay_that_stops_performs_the_batch_that_waits_for_company(store: SqlStore) -> None:
    handler = FakeHandler(together=True)
    relay = Relay(store, {KIND: handler})
    async with serving(relay):
        await until(lambda: relay.lease_ms(KIND, TARGET) is not None)
        await put(store, 1)
    assert (handler.given, (await backlog(store)).waiting) == ([1], 0)
