"""Promises of a commit coordinator: one step writes all it names, or nothing at all."""

import asyncio
from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import (
    KIND,
    LEASE,
    TARGET,
    a_thread,
    asked,
    event,
    everything,
    furnished,
    loaded,
    refused_whole,
    run,
    said,
)
from postroom.contracts.errors import (
    DuplicateRecord,
    ForeignThread,
    IdempotencyConflict,
    IllegalTransition,
    InvalidRecord,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.events import AppendOptions, EventScope
from postroom.contracts.limits import Spending
from postroom.contracts.messages import Message, PendingVersion, Role, ToolCall
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MessageQuery, ThreadCommit
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock


@on_both
async def test_a_commit_writes_all_it_names(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    clock.advance(timedelta(seconds=1))
    commit = everything(stores)
    done = await stores.coordinator.commit(commit)
    assert done.message_count == 4
    records = await stores.threads.list_message_records("t", MessageQuery(after=2))
    assert [(one.seq, one.message, one.created_at) for one in records] == [
        (3, commit.messages[0], clock.now()),
        (4, commit.messages[1], clock.now()),
    ]
    assert [one.pending_id for one in await stores.threads.pending_messages("t")] == ["p2"]
    assert await stores.threads.load_run("r1") == commit.run
    assert await stores.threads.load_thread_state("t") == {"key": "value"}
    listed = await stores.events.list(EventScope.thread("t"), after=1)
    assert [one.event_kind for one in listed.events] == ["First", "Second"]
    assert listed.events == done.events
    assert done.events[0].sequences == {"thread:t": 2, "run:r1": 2}
    (effect,) = await stores.outbox.claim(KIND, TARGET, lease_ms=LEASE)
    assert [one.outbox_id for one in done.outbox] == [effect.outbox_id]
    assert (effect.payload, effect.dedupe_key) == ({"n": 1}, "key")
    assert done.dispatch == await loaded(stores, "d9")
    assert done.dispatch is not None
    assert done.dispatch.claimed_by == "worker"
    thread = await stores.threads.load_thread("t")
    assert (thread.message_count, thread.active_run_id) == (4, "r1")


@on_both
async def test_a_commit_makes_the_thread_it_needs(stores: RunStores, clock: ManualClock) -> None:
    await a_thread(stores, "parent")
    commit = ThreadCommit(thread_id="t", messages=(Message.user("x", id="m1"),), parent_thread_id="parent")
    await stores.coordinator.commit(commit)
    thread = await stores.threads.load_thread("t")
    assert (thread.parent_thread_id, thread.message_count) == ("parent", 1)
    assert (thread.created_at, thread.updated_at) == (clock.now(), clock.now())
    await stores.coordinator.commit(ThreadCommit(thread_id="u", run=run(stores, thread="u")))
    other = await stores.threads.load_thread("u")
    assert (other.parent_thread_id, other.active_run_id) == (None, "r1")
    orphan = ThreadCommit(thread_id="v", messages=(Message.user("x", id="m1"),))
    await refused_whole(stores, replace(orphan, parent_thread_id="nobody"), UnknownThread)
    await refused_whole(stores, replace(orphan, parent_thread_id="v"), InvalidRecord)
    assert await stores.threads.load_thread("v") is None


async def test_a_commit_behind_another_is_refused(stores: RunStores) -> None:
    await furnished(stores)
    for count in (0, 1, 3):
        await refused_whole(
            stores, replace(everything(stores), expected_message_count=count), VersionConflict
        )
    await refused_whole(stores, ThreadCommit(thread_id="t", expected_message_count=0), VersionConflict)
    fresh = ThreadCommit(thread_id="new", messages=(Message.user("x", id="n1"),))
    await refused_whole(stores, replace(fresh, expected_message_count=1), VersionConflict)
    await stores.coordinator.commit(replace(fresh, expected_message_count=0))


async def test_a_commit_of_what_changed_meanwhile_is_refused(stores: RunStores) -> None:
    await furnished(stores)
    commit = everything(stores)
    for pending_id, revision in (("p1", 2), ("p1", 0), ("nobody", 1), ("m1", 1)):
        version = PendingVersion(pending_id=pending_id, revision=revision)
        await refused_whole(stores, replace(commit, consumes=(version,)), VersionConflict)
        mixed = (*commit.consumes, version)
        await refused_whole(stores, replace(commit, consumes=mixed), VersionConflict)
    await stores.threads.edit_pending("t", Message.user("edited", id="p1"))
    await refused_whole(stores, commit, VersionConflict)
    await stores.threads.retract_pending("t", "p1")
    await refused_whole(stores, commit, VersionConflict)


async def test_messages_that_break_a_rule_are_refused(stores: RunStores) -> None:
    await furnished(stores)
    good = Message.user("x", id="m8")
    for bad in (
        Message.user("no id"),
        good,
        Message(role=Role.TOOL, id="m9"),
        Message.assistant("x", id="m9", tool_calls=[ToolCall(id="", name="n")]),
    ):
        await refused_whole(stores, replace(everything(stores), messages=(good, bad)), InvalidRecord)


@on_both
async def test_a_committed_id_is_not_committed_again(stores: RunStores) -> None:
    await furnished(stores)
    again = (Message.user("new", id="m8"), Message.user("again", id="m1"))
    await refused_whole(stores, replace(everything(stores), messages=again), DuplicateRecord)
    await said(stores, "m1", thread="u")


async def test_a_run_moves_only_along_its_arrows(stores: RunStores) -> None:
    await furnished(stores)
    for before, after in (
        (RunStatus.RUNNING, RunStatus.CREATED),
        (RunStatus.WAITING, RunStatus.CREATED),
        (RunStatus.DONE, RunStatus.RUNNING),
        (RunStatus.DONE, RunStatus.WAITING),
        (RunStatus.DONE, RunStatus.CREATED),
    ):
        name = f"{before}-{after}"
        await stores.threads.create_run(run(stores, name, status=before))
        commit = replace(everything(stores), run=run(stores, name, status=after))
        await refused_whole(stores, commit, IllegalTransition)
    await stores.threads.create_run(run(stores, "elsewhere", thread="u"))
    moved = replace(everything(stores), run=run(stores, "elsewhere"))
    await refused_whole(stores, moved, IllegalTransition, ForeignThread)
    kept = await stores.threads.load_run("elsewhere")
    assert kept.thread_id == "u"


async def test_a_run_is_replaced_only_as_it_was_seen(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    await stores.threads.create_run(run(stores, "w", status=RunStatus.WAITING))
    seen = await stores.threads.load_run("w")
    ended = seen.ended(TerminationReason.cancelled(), now=clock.now())
    commit = replace(everything(stores), run=ended, replaces=replace(seen, steps=seen.steps + 1))
    await refused_whole(stores, commit, VersionConflict)
    await refused_whole(stores, replace(commit, run=run(stores, "none"), replaces=seen), VersionConflict)
    await stores.coordinator.commit(ThreadCommit(thread_id="t", run=ended, replaces=seen))
    assert await stores.threads.load_run("w") == ended
    await refused_whole(stores, replace(commit, replaces=seen), VersionConflict, IllegalTransition)


async def test_a_run_of_another_thread_is_refused(stores: RunStores) -> None:
    await furnished(stores)
    commit = everything(stores)
    await refused_whole(stores, replace(commit, run=run(stores, "r1", thread="u")), ForeignThread)
    assert await stores.threads.load_thread("u") is None
    foreign = replace(commit, queues=asked(stores, "d9", thread="u"))
    await refused_whole(stores, foreign, ForeignThread, InvalidRecord)
    assert await stores.dispatches.list_dispatches("u") == ()


@on_both
async def test_events_and_effects_are_refused_with_the_rest(stores: RunStores) -> None:
    await furnished(stores)
    keyed = AppendOptions(writer_id="w", idempotency_key="k")
    await stores.events.append(event("Original", thread="u", options=keyed))
    (used,) = (await stores.coordinator.commit(_effect({"n": 1}))).outbox
    (taken_effect,) = await stores.outbox.claim(KIND, TARGET, lease_ms=LEASE)
    await stores.outbox.ack(used.outbox_id, taken_effect.claim_token or "")
    commit = everything(stores)
    fresh = AppendOptions(writer_id="w", idempotency_key="fresh")
    twice = (event("One", options=fresh), event("Other", options=fresh))
    await refused_whole(stores, replace(commit, events=twice), IdempotencyConflict)
    for draft, kind in (
        (event("Other", options=keyed), IdempotencyConflict),
        (event(options=AppendOptions(expected_prior={"thread:t": 9})), VersionConflict),
    ):
        await refused_whole(stores, replace(commit, events=(event("Good"), draft)), kind)
    other = OutboxDraft(kind=KIND, target=TARGET, payload={"n": 2}, dedupe_key="used")
    await refused_whole(stores, replace(commit, outbox=(*commit.outbox, other)), IdempotencyConflict)
    assert await stores.events.count(EventScope.thread("u")) == 1


def _effect(payload: dict[str, object]) -> ThreadCommit:
    draft = OutboxDraft(kind=KIND, target=TARGET, payload=payload, dedupe_key="used")
    return ThreadCommit(thread_id="other", outbox=(draft,))


@on_both
async def test_a_commit_keeps_any_text(stores: RunStores) -> None:
    text = "\0 \x1a0 \x1a \x1b \u2028 'ü' \\u0000 \U0001f600 %s $1 ? \"x\"" + "long" * 20_000
    commit = ThreadCommit(
        thread_id="t",
        messages=(Message.user(text, id="m1"),),
        run=run(stores, final_output=text, error=text),
        thread_state={"key": text},
        events=(event(payload={"key": text}),),
        outbox=(OutboxDraft(kind=KIND, target=TARGET, payload={"key": text}),),
    )
    await stores.coordinator.commit(commit)
    assert await stores.threads.load_messages("t") == commit.messages
    assert await stores.threads.load_run("r1") == commit.run
    assert await stores.threads.load_thread_state("t") == {"key": text}
    (listed,) = (await stores.events.list(EventScope.thread("t"))).events
    (effect,) = await stores.outbox.claim(KIND, TARGET, lease_ms=LEASE)
    assert listed.payload == effect.payload == {"key": text}


async def test_spending_adds_up_and_a_refused_commit_spends_nothing(stores: RunStores) -> None:
    some = Spending(scope="tenant:a", runs=1, wall_ms=20, tokens=300, cost_micros=4_000)
    other = Spending(scope="thread:t", runs=1)
    for _ in range(2):
        await stores.coordinator.commit(ThreadCommit(thread_id="t", spends=(some, other, other)))
    given_back = Spending(scope="tenant:a", tokens=-500)
    await stores.coordinator.commit(ThreadCommit(thread_id="t", spends=(given_back,)))
    refused_one = ThreadCommit(thread_id="t", spends=(some,), expected_message_count=9)
    with refused(VersionConflict):
        await stores.coordinator.commit(refused_one)
    spent = await stores.threads.spending(["tenant:a", "thread:t", "tenant:b"])
    assert spent == {
        "tenant:a": Spending(scope="tenant:a", runs=2, wall_ms=40, tokens=100, cost_micros=8_000),
        "thread:t": Spending(scope="thread:t", runs=4),
        "tenant:b": Spending(scope="tenant:b"),
    }


@on_both
async def test_spending_at_the_same_time_loses_nothing(stores: RunStores) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(32):
            one = ThreadCommit(thread_id=f"t{number}", spends=(Spending(scope="all:*", runs=1, tokens=2),))
            group.create_task(stores.coordinator.commit(one))
    spent = (await stores.threads.spending(["all:*"]))["all:*"]
    assert (spent.runs, spent.tokens) == (32, 64)
