"""Random steps against each dispatch store and a simple model of it, side by side: they agree after each.

The model holds rows in a dictionary, moves them by the transitions of `RunDispatch` alone, and looks through
all of them for every answer. `POSTROOM_EXAMPLES` sets how many lists of steps are tried on each store.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.run_backends import Place, Prepared, run_place
from postroom.contracts.dispatch import (
    INTERRUPTED,
    STALE_EPOCH,
    UNHANDLED_AT_FIRST,
    Claim,
    RunDispatch,
    RunDispatchResult,
    RunDispatchStatus,
)
from postroom.contracts.errors import (
    ActiveRunConflict,
    DedupeKeyInUse,
    DuplicateRecord,
    ForeignThread,
    InvalidRecord,
    PostroomError,
    QueueFull,
    RunNotOpen,
    StaleClaim,
    UnknownDispatch,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ClaimRequest, Delivery, ThreadCommit
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

pytestmark = pytest.mark.long

__all__ = ["run_place"]

EXAMPLES = {"sqlite": 30, "postgres": 25}
"""What takes about five seconds."""
STEPS = 60
QUEUED, CLAIMED = RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED
THREADS = ("t", "u")
Errors = frozenset[type[PostroomError]]


def turn(row: RunDispatch) -> tuple[int, int, str]:
    """Return what decides whose turn it is."""
    return row.priority, row.created_at, row.dispatch_id


@dataclass
class Model:
    """The queue as it should be."""

    rows: dict[str, RunDispatch] = field(default_factory=dict)
    epochs: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)

    def put(self, row: RunDispatch) -> RunDispatch:
        self.rows[row.dispatch_id] = row
        return row

    def of(self, thread: str, *statuses: RunDispatchStatus) -> list[RunDispatch]:
        found = [
            row
            for row in self.rows.values()
            if row.thread_id == thread and (not statuses or row.status in statuses)
        ]
        return sorted(found, key=turn)

    def claimed(self, thread: str) -> RunDispatch | None:
        return next(iter(self.of(thread, CLAIMED)), None)

    def stale(self, row: RunDispatch) -> bool:
        return row.dispatch_epoch < self.epochs[row.thread_id]

    def next_due(self, thread: str, now: int) -> RunDispatch | None:
        if self.claimed(thread):
            return None
        return next((row for row in self.of(thread, QUEUED) if row.available_at <= now), None)

    def refusals(self, new: RunDispatch) -> Errors:
        """Return with which errors an enqueue may be refused."""
        if new.dispatch_id in self.rows:
            return frozenset({DuplicateRecord})
        found = set[type[PostroomError]]()
        for row in self.rows.values():
            here = row.thread_id == new.thread_id
            if row.status.is_terminal:
                continue
            if row.run_id == new.run_id:
                found.add(RunNotOpen)
            if here and new.dedupe_key is not None and row.dedupe_key == new.dedupe_key:
                found.add(DedupeKeyInUse)
        return frozenset(found)

    def interrupt(self, thread: str, now: int) -> list[RunDispatch]:
        self.epochs[thread] += 1
        return [self.put(row.superseded(reason=INTERRUPTED, now=now)) for row in self.of(thread, QUEUED)]


@dataclass(frozen=True)
class Step:
    """One move, by the name of the method of `Pair` that makes it."""

    move: str
    arguments: dict[str, Any]


def step(move: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(move), st.fixed_dictionaries(arguments))


threads = st.sampled_from(["t", "t", "t", "u"])
owner = st.sampled_from([0, 0, 0, 0, 0, 1, 2, 9])
"""Who writes: 0 is the owner of a claimed dispatch, others once had a claim, or never."""
which = st.sampled_from([0, 0, 1, 1, 2, 3, 8, 9])
"""Which dispatch: at first those that a move is meant for, beyond them any other, and one that never was."""
spans = st.sampled_from([0, 1, 2, 5, 10])
new = {
    "name": st.sampled_from(["new", "new", "new", "new", "d0", "d3"]),
    "thread": threads,
    "run": st.sampled_from(["new", "new", "new", "new", "r0", "r1"]),
    "key": st.sampled_from([None, None, None, "k", "l"]),
    "priority": st.sampled_from([0, 128, 128, 255]),
    "age": st.integers(-1, 2),
    "wait": st.sampled_from([0, 0, 0, 1, 5]),
    "attempts": st.integers(1, 3),
}


def commits() -> st.SearchStrategy[Step]:
    return step(
        "commit",
        **new,
        claim=st.sampled_from([False, True]),
        cap=st.sampled_from([None, None, 1, 2]),
        begins=st.booleans(),
        proof=st.sampled_from([None, None, 0, 1]),
        joins=st.sampled_from([None, None, None, 0, 9]),
        behind=st.sampled_from([0, 0, 0, 0, 1]),
    )


PLAIN = dict(name="new", thread="t", run="new", key=None, priority=128, age=0, wait=0, attempts=3)  # noqa: C408 - one line
moves = (
    step("enqueue", **new)
    | step("enqueue", **new)
    | step("enqueue", **new)
    | step("claim", thread=threads)
    | step("claim_dispatch", nth=which)
    | step("start", nth=owner)
    | step("result", nth=owner, own_run=st.sampled_from([True, True, True, False]))
    | step("ack", nth=owner)
    | step(
        "move",
        nth=owner,
        begins=st.booleans(),
        ends=st.booleans(),
        own_run=st.sampled_from([True, True, False]),
    )
    | step("nack", nth=owner, delay=spans)
    | step("nack", nth=owner, delay=spans)
    | step("release", nth=owner)
    | step("dead_letter", nth=owner)
    | step("extend", nth=owner, span=spans)
    | step("supersede", nth=owner)
    | step("cancel", nth=which)
    | step("interrupt", thread=threads)
    | step("reclaim", limit=st.sampled_from([100, 100, 1, 0]), late=st.sampled_from([None, 0, 1, 1, 9]))
    | step("tell", nths=st.lists(which, max_size=4))
    | step("purge", age=spans, dead_age=st.none() | spans)
    | step("discard", nth=which)
    | step("move_clock", by=st.sampled_from([1, 1, 2, 5, 11, 11, -1, -7]))
    | commits()
    | commits()
    | commits()
)


class Pair:
    """A store and its model, which are given the same steps."""

    def __init__(self, stores: RunStores, clock: ManualClock) -> None:
        self.stores = stores
        self.store = stores.dispatches
        self.clock = clock
        self.model = Model()
        self.claims: list[Claim] = []
        self.made = 0

    @property
    def now(self) -> int:
        return self.clock.now()

    async def take(self, one: Step) -> None:
        await getattr(self, one.move)(**one.arguments)

    def dispatch(self, name: str, thread: str, run: str, key: str | None, **details: int) -> RunDispatch:
        made = self.now - details["age"]
        self.made += 1
        return RunDispatch.queued(
            f"d{self.made}" if name == "new" else name,
            thread,
            f"r-d{self.made}" if run == "new" else run,
            created_at=made,
            available_at=made + details["wait"] if details["wait"] else None,
            priority=details["priority"],
            max_attempts=details["attempts"],
            dedupe_key=key,
        )

    def own(
        self,
        actual: RunDispatch | None,
        expected: RunDispatch | None,
        *,
        consumer: str,
        lease: int,
        begins: str | None = None,
    ) -> None:
        """Check what a claim gave, and remember it."""
        if expected is None:
            assert actual is None
            return
        assert actual is not None
        assert actual.claim_token not in {None, "", *(claim.token for claim in self.claims)}
        token = actual.claim_token or ""
        expected = expected.claim(token=token, consumer=consumer, lease_ms=lease, now=self.now)
        if begins is not None:
            expected = expected.record_dispatch_start(begins, now=self.now)
        assert actual == expected
        self.claims.append(actual.claim_proof)
        self.model.put(actual)

    async def nth_claim(self, nth: int) -> Claim:
        """Return the claim of an owner, made now if there is none, or one that was lost or never was."""
        if nth == 0 and not any(self.lost(claim) is None for claim in self.claims):
            await self.enqueue(**PLAIN)
            for thread in THREADS:
                await self.claim(thread)
        ranked = sorted(
            self.claims, key=lambda claim: (self.lost(claim) is not None, -self.claims.index(claim))
        )
        return ranked[nth] if nth < len(ranked) else Claim(dispatch_id=self.nth_name(0), token="never")

    def nth_name(self, nth: int, *meant: RunDispatchStatus) -> str:
        """Return the id of a dispatch in one of these states, or of any other."""
        ranked = sorted(self.model.rows.values(), key=lambda row: (row.status not in meant, turn(row)))
        return ranked[nth].dispatch_id if nth < len(ranked) else "unknown"

    async def enqueue(self, **details: Any) -> None:
        given = self.dispatch(**details)
        refusals = self.model.refusals(given)
        if refusals:
            await refused(self.store.enqueue(given), refusals)
            return
        expected = replace(given, dispatch_epoch=self.model.epochs[given.thread_id])
        assert await self.store.enqueue(given) == self.model.put(expected)

    async def claim(self, thread: str) -> None:
        expected = self.model.next_due(thread, self.now)
        self.own(await self.store.claim(thread, "w", lease_ms=10), expected, consumer="w", lease=10)

    async def claim_dispatch(self, nth: int) -> None:
        name = self.nth_name(nth, QUEUED)
        row = self.model.rows.get(name)
        free = row is not None and row.status is QUEUED and not self.model.claimed(row.thread_id)
        actual = await self.store.claim_dispatch(name, "v", lease_ms=3)
        self.own(actual, row if free else None, consumer="v", lease=3)

    async def write(
        self,
        nth: int,
        call: Callable[[Claim], Awaitable[RunDispatch]],
        transition: Callable[[RunDispatch], RunDispatch],
    ) -> None:
        """Make an owner's write on both."""
        claim = await self.nth_claim(nth)
        refusal = self.lost(claim)
        if refusal is not None:
            await refused(call(claim), frozenset({refusal}))
            self.supersede_when_stale(claim)
            return
        try:
            expected = transition(self.model.rows[claim.dispatch_id])
        except PostroomError as error:
            await refused(call(claim), frozenset({type(error)}))
            return
        assert await call(claim) == self.model.put(expected)

    def lost(self, claim: Claim) -> type[PostroomError] | None:
        """Say with which error a claim is refused."""
        row = self.model.rows.get(claim.dispatch_id)
        if row is None:
            return UnknownDispatch
        if row.status is not CLAIMED or row.claim_token != claim.token or self.model.stale(row):
            return StaleClaim
        return None

    def supersede_when_stale(self, claim: Claim) -> None:
        row = self.model.rows.get(claim.dispatch_id)
        if row and row.status is CLAIMED and row.claim_token == claim.token and self.model.stale(row):
            self.model.put(row.superseded(reason=STALE_EPOCH, now=self.now))

    async def start(self, nth: int) -> None:
        await self.write(
            nth,
            lambda claim: self.store.record_dispatch_start(claim, "i"),
            lambda row: row.record_dispatch_start("i", now=self.now),
        )

    async def result(self, nth: int, *, own_run: bool) -> None:
        said = self.said_of(await self.nth_claim(nth), own_run=own_run)
        await self.write(
            nth,
            lambda claim: self.store.record_run_result(claim, said),
            lambda row: row.record_run_result(said, now=self.now),
        )

    async def ack(self, nth: int) -> None:
        await self.write(nth, self.store.ack, lambda row: row.acked(now=self.now))

    def said_of(self, claim: Claim, *, own_run: bool) -> RunDispatchResult:
        row = self.model.rows.get(claim.dispatch_id)
        return RunDispatchResult(
            run_id=row.run_id if row and own_run else "another",
            dispatch_instance_id="i",
            status=RunStatus.DONE,
            termination=TerminationReason.error("x"),
            response="an answer",
            error="an error",
        )

    async def move(self, nth: int, *, begins: bool, ends: bool, own_run: bool) -> None:
        """Begin an execution, end it, or both, in a commit of the thread."""
        claim = await self.nth_claim(nth)
        row, lost = self.model.rows.get(claim.dispatch_id), self.lost(claim)
        commit = ThreadCommit(
            thread_id=row.thread_id if row else "t",
            claim=claim,
            begins="i" if begins else None,
            ends=self.said_of(claim, own_run=own_run) if ends else None,
        )
        refusals: set[type[PostroomError]] = {StaleClaim} if lost else set()
        if not self.model.said[commit.thread_id]:
            refusals.add(UnknownThread)
        if ends and not own_run:
            refusals.add(InvalidRecord)
        if refusals:
            error = await refused(self.stores.coordinator.commit(commit), frozenset(refusals))
            if isinstance(error, StaleClaim):
                self.supersede_when_stale(claim)
            return
        assert row is not None
        done = await self.stores.coordinator.commit(commit)
        moved = commit.moved(row, now=self.now)
        if moved is not None:
            self.model.put(moved)
        assert done.dispatch == moved

    async def nack(self, nth: int, delay: int) -> None:
        await self.write(
            nth,
            lambda claim: self.store.nack(claim, error="e", delay_ms=delay),
            lambda row: row.nacked(error="e", delay_ms=delay, now=self.now),
        )

    async def release(self, nth: int) -> None:
        await self.write(nth, self.store.release, lambda row: row.released(now=self.now))

    async def dead_letter(self, nth: int) -> None:
        await self.write(
            nth,
            lambda claim: self.store.dead_letter(claim, error="e"),
            lambda row: row.dead_lettered(error="e", now=self.now),
        )

    async def extend(self, nth: int, span: int) -> None:
        claim = await self.nth_claim(nth)
        kept = self.lost(claim) is None
        assert await self.store.extend_lease(claim, extension_ms=span) == kept
        self.supersede_when_stale(claim)
        if kept:
            row = self.model.rows[claim.dispatch_id]
            self.model.put(row.extend_lease(extension_ms=span, now=self.now))

    async def supersede(self, nth: int) -> None:
        claim = await self.nth_claim(nth)
        row = self.model.rows.get(claim.dispatch_id)
        if row is None:
            return
        if row.status is CLAIMED and row.claim_token != claim.token:
            await refused(self.store.supersede_claimed(claim, reason="r"), frozenset({StaleClaim}))
            return
        actual = await self.store.supersede_claimed(claim, reason="r")
        if row.status is not CLAIMED:
            assert actual is None
            return
        assert actual == self.model.put(row.superseded(reason="r", now=self.now))

    async def cancel(self, nth: int) -> None:
        name = self.nth_name(nth, QUEUED)
        row = self.model.rows.get(name)
        actual = await self.store.cancel(name)
        if row is None or row.status is not QUEUED:
            assert actual is None
            return
        assert actual == self.model.put(row.cancelled(now=self.now))

    async def interrupt(self, thread: str) -> None:
        done = await self.store.interrupt(thread)
        superseded = self.model.interrupt(thread, self.now)
        assert sorted(done.superseded_dispatches, key=turn) == superseded
        assert done.new_dispatch_epoch == self.model.epochs[thread]
        assert done.active_dispatch == self.model.claimed(thread)

    async def reclaim(self, limit: int, late: int | None) -> None:
        """Which rows a limit leaves for later is the store's to decide."""
        leases = [row.lease_until for row in self.model.rows.values() if row.lease_until is not None]
        if late is not None and leases:
            self.clock.set(min(leases) + late)
        back = await self.store.reclaim_expired_leases(limit=limit)
        lost = [
            row
            for row in self.model.rows.values()
            if row.status is CLAIMED and (row.lease_until or 0) < self.now
        ]
        current = {row.dispatch_id: row for row in lost if not self.model.stale(row)}
        assert len(back) == len({row.dispatch_id for row in back}) == min(limit, len(current))
        for row in back:
            assert row == self.model.put(current[row.dispatch_id].lease_ended(now=self.now))
        for row in lost:
            if self.model.stale(row):
                actual = await self.store.load_dispatch(row.dispatch_id)
                expected = row.superseded(reason=STALE_EPOCH, now=self.now)
                assert actual == expected or (actual == row and len(back) == limit)
                self.model.put(actual)

    async def tell(self, nths: list[int]) -> None:
        names = [self.nth_name(nth, *UNHANDLED_AT_FIRST) for nth in nths]
        await self.store.mark_reconciled(names)
        for name in names:
            if name in self.model.rows:
                self.model.put(replace(self.model.rows[name], reconciled=True))

    async def purge(self, age: int, dead_age: int | None) -> None:
        bound = self.now - age
        dead_bound = bound if dead_age is None else self.now - dead_age
        gone = {
            name
            for name, row in self.model.rows.items()
            if row.status.is_terminal
            and row.reconciled
            and row.updated_at < (dead_bound if row.status is RunDispatchStatus.DEAD_LETTER else bound)
        }
        given = None if dead_age is None else dead_bound
        assert await self.store.purge_terminal(older_than=bound, dead_letters_older_than=given) == len(gone)
        for name in gone:
            del self.model.rows[name]

    async def discard(self, nth: int) -> None:
        name = self.nth_name(nth, RunDispatchStatus.DEAD_LETTER)
        row = self.model.rows.get(name)
        dead = row is not None and row.status is RunDispatchStatus.DEAD_LETTER
        assert await self.store.discard(name) == (row if dead else None)
        if dead:
            del self.model.rows[name]

    async def move_clock(self, by: int) -> None:
        self.clock.set(self.now + by)

    async def commit(
        self,
        *,
        claim: bool,
        cap: int | None,
        proof: int | None,
        joins: int | None,
        behind: int,
        begins: bool,
        **details: Any,
    ) -> None:
        """Submit: a message, and the dispatch that delivers it, in one step."""
        proved = None if proof is None else await self.nth_claim(proof)
        given = self.dispatch(**details)
        thread = given.thread_id
        commit = ThreadCommit(
            thread_id=thread,
            messages=(Message.user("x", id=f"m{self.made}"),),
            expected_message_count=self.model.said[thread] + behind,
            claim=proved,
            joins=None if joins is None else self.nth_name(joins, QUEUED),
            begins="i" if begins and claim and proof is None else None,
            delivery=Delivery(
                dispatch=given,
                claim=ClaimRequest(consumer="c", lease_ms=7) if claim else None,
                queue_cap=cap,
            ),
        )
        refusals = self.refusals(commit)
        if refusals:
            error = await refused(self.stores.coordinator.commit(commit), refusals)
            if commit.claim is not None and isinstance(error, StaleClaim):
                self.supersede_when_stale(commit.claim)
            return
        done = await self.stores.coordinator.commit(commit)
        self.model.said[thread] += 1
        assert done.message_count == self.model.said[thread]
        row = self.model.put(replace(given, dispatch_epoch=self.model.epochs[thread]))
        if claim:
            self.own(done.dispatch, row, consumer="c", lease=7, begins=commit.begins)
        assert done.dispatch == self.model.rows[given.dispatch_id]

    def refusals(self, commit: ThreadCommit) -> Errors:
        """Return with which errors a commit may be refused."""
        delivery = commit.delivery
        assert delivery is not None
        found = set(self.model.refusals(delivery.dispatch))
        if delivery.queue_cap is not None:
            waiting = len(self.model.of(commit.thread_id, QUEUED))
            if waiting >= delivery.queue_cap:
                found.add(QueueFull)
        if delivery.claim and self.model.claimed(commit.thread_id):
            found.add(ActiveRunConflict)
        if commit.expected_message_count != self.model.said[commit.thread_id]:
            found.add(VersionConflict)
        joined = self.model.rows.get(commit.joins or "")
        if commit.joins and (
            not joined or joined.status is not QUEUED or joined.thread_id != commit.thread_id
        ):
            found.add(VersionConflict)
        if commit.claim is not None and not self.model.said[commit.thread_id]:
            found.add(UnknownThread)
        if commit.claim is not None:
            row = self.model.rows.get(commit.claim.dispatch_id)
            if self.lost(commit.claim):
                found.add(StaleClaim)
            elif row is not None and row.thread_id != commit.thread_id:
                found |= {StaleClaim, ForeignThread}
        return frozenset(found)

    async def agree(self) -> None:
        """Check what every step could break."""
        rows, now = self.model.rows.values(), self.now
        due = []
        for thread in THREADS:
            assert await self.store.list_dispatches(thread) == tuple(self.model.of(thread))
            claimed = self.model.of(thread, CLAIMED)
            assert len(claimed) <= 1
            assert await self.store.claimed_dispatch(thread) == self.model.claimed(thread)
            assert await self.store.current_dispatch_epoch(thread) == self.model.epochs[thread]
            if row := self.model.next_due(thread, now):
                due.append(row)
        assert await self.store.due_thread_ids() == tuple(row.thread_id for row in sorted(due, key=turn))
        waiting = [
            row.available_at for row in rows if row.status is QUEUED and not self.model.claimed(row.thread_id)
        ]
        assert await self.store.next_due_at() == min(waiting, default=None)

    async def agree_at_the_end(self) -> None:
        """Check all other ways in which the queue can be looked at."""
        rows = self.model.rows.values()
        counts = Counter(row.status for row in rows)
        assert {status: n for status, n in (await self.store.count_by_status()).items() if n} == counts
        for status in RunDispatchStatus:
            listed = await self.store.list_by_status(status)
            assert listed == tuple(by_change(row for row in rows if row.status is status))
        assert await self.store.unreconciled_dispatches() == tuple(
            by_change(row for row in rows if not row.reconciled)
        )
        queued = Counter(row.thread_id for row in rows if row.status is QUEUED)
        assert await self.store.queued_thread_ids() == tuple(sorted(queued))
        for thread in THREADS:
            assert await self.store.count_queued(thread, at_most=99) == queued[thread]
            assert len(await self.stores.threads.load_messages(thread) or ()) == self.model.said[thread]
        for name, row in self.model.rows.items():
            assert await self.store.load_dispatch(name) == row
            assert not (row.status is QUEUED and self.model.stale(row))


def by_change(rows: Iterable[RunDispatch]) -> list[RunDispatch]:
    return sorted(rows, key=lambda row: (row.updated_at, row.dispatch_id))


async def refused(call: Awaitable[object], kinds: Errors) -> PostroomError:
    """Expect one of these errors, and return it."""
    with pytest.raises(tuple(kinds)) as caught:
        await call
    return caught.value


async def played(prepared: Prepared, clock: ManualClock, steps: list[Step]) -> None:
    async with asyncio.timeout(30), prepared.opened() as stores:
        pair = Pair(stores, clock)
        for one in steps:
            await pair.take(one)
            await pair.agree()
        await pair.agree_at_the_end()


@pytest.mark.timeout(3600)
def test_a_dispatch_store_agrees_with_its_model(run_place: Place) -> None:
    examples = int(os.environ.get("POSTROOM_EXAMPLES", EXAMPLES[run_place.backend]))

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(steps=st.integers(1, STEPS).flatmap(lambda n: st.lists(moves, min_size=n, max_size=n)))
    def agree(steps: list[Step]) -> None:
        clock = ManualClock()
        prepared = run_place.prepared(clock)
        try:
            runner.run(played(prepared, clock, steps))
        finally:
            prepared.close()

    with asyncio.Runner() as runner:
        agree()
