"""The initial records of promises about runs, with only the relevant fields given."""

from collections.abc import Sequence
from typing import Any

from conformance.promises.given import refused
from postroom.contracts.dispatch import RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.errors import PostroomError
from postroom.contracts.events import CanonicalEventDraft, EventScope
from postroom.contracts.messages import DeliveryMode, Message, PendingMessage, PendingVersion
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ClaimRequest, Committed, RunQuery, ThreadCommit
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    TerminationReason,
    Thread,
    WaitingReason,
)
from postroom.stores.runs.ports import RunStores

SECOND = 1_000
LEASE = 30 * SECOND
"""For how long a promise owns what it claims, in milliseconds."""
TOGETHER = 32
"""How many callers a promise about concurrency uses."""
KIND = "kind"
TARGET = "target"


def asked(stores: RunStores, dispatch_id: str = "d1", *, thread: str = "t", **details: Any) -> RunDispatch:
    """Return a dispatch to enqueue, made now, of the run `r-<dispatch id>` if no run is named."""
    details.setdefault("created_at", stores.clock.now())
    run_id = details.pop("run_id", f"r-{dispatch_id}")
    return RunDispatch.queued(dispatch_id, thread, run_id, **details)


async def enqueued(
    stores: RunStores, dispatch_id: str = "d1", *, thread: str = "t", **details: Any
) -> RunDispatch:
    """Enqueue a dispatch."""
    return await stores.dispatches.enqueue(asked(stores, dispatch_id, thread=thread, **details))


async def claimed(
    stores: RunStores, dispatch_id: str = "d1", *, thread: str = "t", **details: Any
) -> RunDispatch:
    """Enqueue a dispatch and own it for `LEASE`."""
    await enqueued(stores, dispatch_id, thread=thread, **details)
    return await taken(stores, dispatch_id)


async def taken(stores: RunStores, dispatch_id: str = "d1", *, consumer: str = "worker") -> RunDispatch:
    """Own a queued dispatch for `LEASE`."""
    found = await stores.dispatches.claim_dispatch(dispatch_id, consumer, lease_ms=LEASE)
    assert found is not None, f"{dispatch_id} could not be claimed"
    return found


async def loaded(stores: RunStores, dispatch_id: str = "d1") -> RunDispatch:
    """Return a dispatch that must be there."""
    found = await stores.dispatches.load_dispatch(dispatch_id)
    assert found is not None, f"{dispatch_id} is not there"
    return found


async def ended(
    stores: RunStores, dispatch_id: str, status: RunDispatchStatus, *, thread: str = "t"
) -> RunDispatch:
    """Store a dispatch that has ended so, on a thread with nothing queued."""
    if status is RunDispatchStatus.CANCELLED:
        await enqueued(stores, dispatch_id, thread=thread)
        await stores.dispatches.cancel(dispatch_id)
        return await loaded(stores, dispatch_id)
    if status is RunDispatchStatus.SUPERSEDED:
        await enqueued(stores, dispatch_id, thread=thread)
        await stores.dispatches.interrupt(thread)
        return await loaded(stores, dispatch_id)
    proof = (await claimed(stores, dispatch_id, thread=thread)).claim_proof
    if status is RunDispatchStatus.ACKED:
        return await stores.dispatches.ack(proof)
    return await stores.dispatches.dead_letter(proof, error="broken")


def result(dispatch: RunDispatch, *, status: RunStatus = RunStatus.DONE, **details: Any) -> RunDispatchResult:
    """Return how an execution of the dispatch's run ended."""
    details.setdefault("run_id", dispatch.run_id)
    details.setdefault("termination", TerminationReason.natural_end())
    return RunDispatchResult(dispatch_instance_id="instance", status=status, **details)


async def reported(stores: RunStores, dispatch: RunDispatch) -> RunDispatch:
    """Record that the execution of a claimed dispatch began and how it ended."""
    await stores.dispatches.record_dispatch_start(dispatch.claim_proof, "instance")
    said = result(dispatch, status=RunStatus.DONE, response="an answer", error="a complaint")
    return await stores.dispatches.record_run_result(dispatch.claim_proof, said)


def ids(dispatches: Sequence[RunDispatch]) -> list[str]:
    """Return the ids of dispatches."""
    return [one.dispatch_id for one in dispatches]


def run(stores: RunStores, run_id: str = "r1", *, thread: str = "t", **details: Any) -> RunRecord:
    """Return a run of a thread, written now, with what its status asks for."""
    now = stores.clock.now()
    status = details.setdefault("status", RunStatus.RUNNING)
    details.setdefault("created_at", now)
    details.setdefault("updated_at", now)
    if status is RunStatus.WAITING:
        details.setdefault("waiting", RunWaitingState(reason=WaitingReason.USER_INPUT))
    if status is RunStatus.DONE:
        details.setdefault("finished_at", now)
    return RunRecord(run_id=run_id, thread_id=thread, **details)


async def a_thread(stores: RunStores, thread_id: str = "t", **details: Any) -> Thread:
    """Store a thread with nothing in it."""
    await stores.threads.save_thread(Thread(id=thread_id, **details))
    found = await stores.threads.load_thread(thread_id)
    assert found is not None, f"{thread_id} is not there"
    return found


async def said(stores: RunStores, *message_ids: str, thread: str = "t") -> Committed:
    """Commit messages of a person, regardless of earlier messages."""
    messages = tuple(Message.user(f"text of {one}", id=one) for one in message_ids)
    return await stores.coordinator.commit(ThreadCommit(thread_id=thread, messages=messages))


async def waiting(
    stores: RunStores, *message_ids: str, thread: str = "t", mode: DeliveryMode | None = None
) -> tuple[PendingMessage, ...]:
    """Store messages of a person that wait on a thread; return the messages of this call."""
    messages = [Message.user(f"text of {one}", id=one) for one in message_ids]
    return await stores.threads.append_pending(thread, messages, mode or DeliveryMode())


def message_ids(entries: Sequence[PendingMessage]) -> list[str]:
    """Return the ids of pending messages."""
    return [one.pending_id for one in entries]


def event(
    kind: str = "Happened", *, thread: str = "t", run_id: str | None = None, **details: Any
) -> CanonicalEventDraft:
    """Return an event for the log of a thread, and of a run if `run_id` is given."""
    scopes = [EventScope.thread(thread), *([EventScope.run(run_id)] if run_id else [])]
    return CanonicalEventDraft(scopes=tuple(scopes), event_kind=kind, **details)


async def furnished(stores: RunStores) -> None:
    """Store the records that a commit of everything needs: messages, a run, and two waiting messages."""
    await said(stores, "m1", "m2")
    await waiting(stores, "p1", "p2")
    await stores.threads.create_run(run(stores, "r1"))
    await stores.events.append(event(run_id="r1"))


def everything(stores: RunStores) -> ThreadCommit:
    """Return a commit that writes in every table, on what `furnished` stored."""
    return ThreadCommit(
        thread_id="t",
        messages=(Message.user("read now", id="p1"), Message.assistant("an answer", id="m3")),
        expected_message_count=2,
        consumes=(PendingVersion(pending_id="p1", revision=1),),
        run=run(stores, "r1", steps=5, output_message_ids=("m3",)),
        thread_state={"key": "value"},
        events=(event("First", run_id="r1"), event("Second")),
        outbox=(OutboxDraft(kind=KIND, target=TARGET, payload={"n": 1}, dedupe_key="key"),),
        queues=asked(stores, "d9", dedupe_key="key"),
        claimed_by=ClaimRequest(consumer="worker", lease_ms=LEASE),
    )


async def snapshot(stores: RunStores, *thread_ids: str) -> dict[str, object]:
    """Return all that can be read of these threads, and how all dispatches stand."""
    seen: dict[str, object] = {"counts": await stores.dispatches.count_by_status()}
    for thread in thread_ids:
        runs = await stores.threads.list_runs(RunQuery(thread_id=thread))
        scopes = [EventScope.thread(thread), *(EventScope.run(one.run_id) for one in runs)]
        seen[thread] = [
            await stores.threads.load_thread(thread),
            await stores.threads.load_messages(thread),
            await stores.threads.pending_messages(thread),
            await stores.threads.load_thread_state(thread),
            await stores.threads.submission_state(thread),
            runs,
            await stores.dispatches.list_dispatches(thread),
            await stores.dispatches.current_dispatch_epoch(thread),
            [(await stores.events.list(scope)).events for scope in scopes],
        ]
    return seen


async def refused_whole(stores: RunStores, commit: ThreadCommit, *kinds: type[PostroomError]) -> None:
    """Expect a commit to be refused with one of these errors, and to change nothing.

    Requires that no effect waits on `KIND` for `TARGET`.
    """
    before = await snapshot(stores, commit.thread_id)
    with refused(*kinds):
        await stores.coordinator.commit(commit)
    assert await snapshot(stores, commit.thread_id) == before
    assert await stores.outbox.claim(KIND, TARGET, lease_ms=1) == ()


def without_token(dispatch: RunDispatch) -> RunDispatch:
    """Return a claimed dispatch with its token, which no promise can know, made the same for all."""
    assert dispatch.claim_token, f"{dispatch.dispatch_id} has no token"
    return replace(dispatch, claim_token="token")
