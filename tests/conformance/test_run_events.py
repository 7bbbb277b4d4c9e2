"""Promises of an event store: each scope counts without gaps, a key counts once, a reader misses nothing."""

import asyncio
from datetime import timedelta

import pytest

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import TOGETHER, event
from postroom.contracts.errors import IdempotencyConflict, InvalidRecord, VersionConflict
from postroom.contracts.events import (
    AppendOptions,
    CanonicalEvent,
    CanonicalEventDraft,
    EventScope,
    EventVisibility,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

THREAD = EventScope.thread("t")
KEYED = AppendOptions(writer_id="w", idempotency_key="k")


async def _kinds(stores: RunStores, scope: EventScope, *, after: int = 0) -> list[str]:
    return [one.event_kind for one in (await stores.events.list(scope, after=after)).events]


def test_an_event_has_a_kind_and_at_most_one_scope_of_each_family() -> None:
    given = event("A")
    for wrong in ({"scopes": ()}, {"scopes": (THREAD, EventScope.thread("u"))}, {"event_kind": " "}):
        with pytest.raises(InvalidRecord, match="at most one scope of each family"):
            replace(given, **wrong)


@on_both
async def test_an_added_event_is_numbered_in_both_scopes_and_its_key_counts_once(stores: RunStores) -> None:
    draft = event(
        "Kind: 'ü'",
        thread='t: "x" \\ ü',
        run_id="r: 'ü'",
        payload={"text": "東京"},
        causation_id="c",
        correlation_id="e",
        origin="runtime",
        visibility=EventVisibility.AUDIT,
        schema_version=3,
        options=KEYED,
    )
    for _ in range(2):
        await stores.events.add(draft)
    await stores.events.add(event("Next", thread='t: "x" \\ ü', run_id="r2"))
    first, following = (await stores.events.list(draft.scopes[0])).events
    assert (await stores.events.list(draft.scopes[1])).events == (first,)
    assert first == await stores.events.append(draft), "the key gives the event that was added"
    assert first.sequences == {scope.key: 1 for scope in draft.scopes}
    assert following.sequences == {draft.scopes[0].key: 2, "run:r2": 1}
    told = {name: getattr(first, name) for name in ("payload", "causation_id", "correlation_id", "origin")}
    assert told == {name: getattr(draft, name) for name in told}
    assert (first.visibility, first.schema_version) == (draft.visibility, draft.schema_version)


@on_both
async def test_an_event_reads_back_as_it_was_appended(stores: RunStores, clock: ManualClock) -> None:
    draft = event(
        "Kind: 'ü'",
        run_id="r: 'ü'",
        payload={"a": [1, 2.5, None, {"ü": True}], "text": "東京 \U0001f600"},
        causation_id="c",
        correlation_id='e: "x"',
        origin="runtime",
        visibility=EventVisibility.AUDIT,
        schema_version=3,
    )
    made = await stores.events.append(draft)
    assert made == CanonicalEvent(
        event_id=made.event_id,
        event_kind=draft.event_kind,
        payload=draft.payload,
        sequences={"thread:t": 1, "run:r: 'ü'": 1},
        created_at=clock.now(),
        causation_id="c",
        correlation_id='e: "x"',
        origin="runtime",
        visibility=EventVisibility.AUDIT,
        schema_version=3,
    )
    assert await stores.events.load(made.event_id) == made
    assert (await stores.events.list(THREAD)).events == (made,)
    assert await stores.events.load("unknown") is None
    later = await stores.events.append(event(), now=clock.now() + 5)
    assert later.created_at == clock.now() + 5
    assert later.event_id != made.event_id


async def test_an_append_that_is_repeated_gives_the_first_event(
    stores: RunStores, clock: ManualClock
) -> None:
    draft = event("Once", run_id="r1", payload={"b": 1, "a": 2}, options=KEYED)
    first = await stores.events.append(draft)
    clock.advance(timedelta(days=1))
    for again in (
        draft,
        replace(draft, origin="another", schema_version=9),
        replace(draft, payload={"a": 2, "b": 1}),
        replace(draft, scopes=draft.scopes[::-1]),
        replace(draft, options=replace(KEYED, expected_prior={"thread:t": 77})),
    ):
        assert await stores.events.append(again) == first
    assert await stores.events.count(THREAD) == 1
    assert await stores.events.count(EventScope.run("r1")) == 1


@on_both
async def test_a_key_used_for_another_event_conflicts(stores: RunStores) -> None:
    draft = event("Once", payload={"a": 1}, causation_id="c", correlation_id="d", options=KEYED)
    await stores.events.append(draft)
    for other in (
        replace(draft, event_kind="Other"),
        replace(draft, payload={"a": 2}),
        replace(draft, causation_id="x"),
        replace(draft, correlation_id=None),
        replace(draft, visibility=EventVisibility.INTERNAL),
        replace(draft, scopes=(EventScope.thread("u"),)),
        replace(draft, scopes=(*draft.scopes, EventScope.run("r1"))),
    ):
        with refused(IdempotencyConflict):
            await stores.events.append(other)
    assert await stores.events.count(THREAD) == 1
    assert await stores.events.count(EventScope.thread("u")) == 0
    assert await stores.events.count(EventScope.run("r1")) == 0


async def test_an_append_may_expect_the_newest_number(stores: RunStores) -> None:

    def expecting(**prior: int) -> CanonicalEventDraft:
        keys = {f"{family}:{'t' if family == 'thread' else 'r1'}": n for family, n in prior.items()}
        return event("Expecting", run_id="r1", options=AppendOptions(expected_prior=keys))

    await stores.events.append(event())
    assert (await stores.events.append(expecting(thread=1, run=0))).sequences == {"thread:t": 2, "run:r1": 1}
    for wrong in (expecting(thread=1), expecting(thread=3), expecting(run=0), expecting(thread=2, run=2)):
        with refused(VersionConflict):
            await stores.events.append(wrong)
    assert await stores.events.count(THREAD) == 2
    assert await stores.events.count(EventScope.run("r1")) == 1
    assert (await stores.events.append(expecting(thread=2))).sequences == {"thread:t": 3, "run:r1": 2}


@on_both
async def test_events_appended_at_the_same_time_leave_no_gap(stores: RunStores) -> None:
    async with asyncio.TaskGroup() as group:
        tries = [
            group.create_task(stores.events.append(event(f"E{n}", run_id=f"r{n % 3}")))
            for n in range(TOGETHER)
        ]
    made = sorted((one.result() for one in tries), key=lambda one: one.sequences["thread:t"])
    assert [one.sequences["thread:t"] for one in made] == list(range(1, TOGETHER + 1))
    assert (await stores.events.list(THREAD)).events == tuple(made)
    for number in range(3):
        scope = EventScope.run(f"r{number}")
        listed = (await stores.events.list(scope)).events
        assert [one.sequences[scope.key] for one in listed] == list(range(1, len(listed) + 1))
        assert {one.run_id for one in listed} == {f"r{number}"}


@on_both
async def test_repeating_at_the_same_time_appends_once(stores: RunStores) -> None:
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(stores.events.append(event(options=KEYED))) for _ in range(TOGETHER)]
    assert {one.result().event_id for one in tries} == {tries[0].result().event_id}
    assert await stores.events.count(THREAD) == 1


@on_both
async def test_of_appends_that_expect_the_same_one_goes_through(stores: RunStores) -> None:
    expecting = event(options=AppendOptions(expected_prior={"thread:t": 0}))

    async def append() -> bool:
        try:
            await stores.events.append(expecting)
        except VersionConflict:
            return False
        return True

    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(append()) for _ in range(TOGETHER)]
    assert sum(one.result() for one in tries) == 1
    assert await stores.events.count(THREAD) == 1


@on_both
async def test_who_waits_for_events_is_woken(stores: RunStores) -> None:
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(stores.events.wait(THREAD, after=0))
        await asyncio.sleep(0)
        await stores.events.append(event())
        await waits
    await stores.events.wait(THREAD, after=0)
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(stores.events.wait(THREAD, after=1))
        await asyncio.sleep(0)
        await stores.coordinator.commit(ThreadCommit(thread_id="t", events=(event("Second"),)))
        await waits
    assert await _kinds(stores, THREAD, after=1) == ["Second"]


@on_both
async def test_who_follows_a_scope_misses_nothing(stores: RunStores) -> None:
    await stores.events.append(event("E0"))
    seen: list[str] = []

    async def follow() -> None:
        cursor = 0
        while len(seen) < TOGETHER + 1:
            await stores.events.wait(THREAD, after=cursor)
            page = await stores.events.list(THREAD, after=cursor, limit=3)
            seen.extend(one.event_kind for one in page.events)
            cursor = page.cursor

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        for number in range(TOGETHER):
            group.create_task(stores.events.append(event(f"E{number + 1}")))
    assert sorted(seen) == sorted(f"E{number}" for number in range(TOGETHER + 1))
