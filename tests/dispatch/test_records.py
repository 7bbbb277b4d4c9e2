"""Records and texts that callers see: results of submissions, dispatches as they are built, errors."""

from typing import Any

import pytest

from dispatch.conftest import Room
from dispatch_room import Blocking, Counting, Deaf, Noop, make_resume
from dispatch_waiting import settled
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    InternalError,
    InvalidRecord,
    InvalidSubmission,
    StoreError,
    all_errors,
)
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.completion import COMPLETED, MailboxRunOutcome, OutcomeKind
from postroom.dispatch.submission import MailboxDispatchStatus, MailboxSubmitResult
from postroom.testing.run_faults import failing_changes


class Deciding(Deaf):
    """Takes decisions for one run."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self._run_id = run_id
        self.decided: list[Any] = []

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        if id != self._run_id:
            return False
        self.decided.append((tool_call_id, resume))
        return True


def test_dispatch_status_enum_variants() -> None:
    assert {status.name: status.value for status in MailboxDispatchStatus} == {
        "RUNNING": "running",
        "QUEUED": "queued",
    }


def test_dispatch_status_queued_zero() -> None:
    running, queued = MailboxDispatchStatus.RUNNING, MailboxDispatchStatus.QUEUED
    assert MailboxDispatchStatus("running") is running
    assert MailboxDispatchStatus("queued") is queued
    assert running is not queued
    stored = {"Queued", "Claimed", "Acked", "Cancelled", "Superseded", "DeadLetter"}
    assert {status.value for status in RunDispatchStatus} == stored
    still_open = {status for status in RunDispatchStatus if not status.is_terminal}
    assert still_open == {RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED}


async def test_mailbox_construction_depends_on_runtime_boundary_not_agent_runtime(room: Room) -> None:
    """Anything that keeps the executor's port does; what is claimed is claimed in the consumer's name."""
    with pytest.raises(InvalidRecord):
        room.mailbox(Noop(), consumer_id=" ")
    executor = Blocking()
    mailbox = room.mailbox(executor, consumer_id="decoupled-consumer")
    assert mailbox.consumer_id == "decoupled-consumer"
    submitted = await mailbox.submit_background(RunActivation.new("thread-decoupled", ["hi"]))
    row = await room.stores.dispatches.load_dispatch(submitted.dispatch_id)
    assert row is not None
    assert (row.status, row.claimed_by) == (RunDispatchStatus.CLAIMED, "decoupled-consumer")
    executor.release.set()
    await settled(mailbox)
    assert [one.run_id for one in executor.activations] == [submitted.run_id]


def test_mailbox_error_display() -> None:
    assert InvalidSubmission("test").describe() == "validation error: test"
    assert InternalError("oops").describe() == "internal error: oops"


async def test_mailbox_error_store_variant(room: Room) -> None:
    """A store's failure comes out of the mailbox as what it is, and says so."""
    assert all(
        kind("x").describe() == "store error: x" for kind in all_errors() if issubclass(kind, StoreError)
    )
    mailbox = room.mailbox(Noop(), stores=failing_changes(room.stores, before={"submit": [True]}))
    with pytest.raises(StoreError) as failure:
        await mailbox.submit_background(RunActivation.new("thread-store-error", ["hi"]))
    assert failure.value.describe() == "store error: injected submit failure"


async def test_mailbox_submit_result_fields(room: Room) -> None:
    mailbox = room.mailbox(Counting())
    submitted = await mailbox.submit_background(RunActivation.new("thread-1", ["hi"]))
    assert submitted == MailboxSubmitResult(
        dispatch_id=submitted.dispatch_id,
        run_id=submitted.run_id,
        thread_id="thread-1",
        status=MailboxDispatchStatus.RUNNING,
        joined=False,
    )
    await settled(mailbox)
    [row] = await mailbox.list_dispatches("thread-1")
    run = await room.stores.threads.latest_run("thread-1")
    assert run is not None
    assert (row.dispatch_id, row.run_id, row.thread_id) == (
        submitted.dispatch_id,
        submitted.run_id,
        "thread-1",
    )
    assert (run.run_id, run.dispatch_id) == (submitted.run_id, submitted.dispatch_id)


async def test_build_dispatch_sets_correct_fields(memory_room: Room) -> None:
    mailbox, now = memory_room.mailbox(Noop()), memory_room.clock.now()
    request = RunActivation.new("thread-42", ["test"]).hinted(run_id="run-42")
    dispatch = mailbox.build_dispatch(request)
    assert dispatch.thread_id == "thread-42"
    assert dispatch.run_id == "run-42"
    assert dispatch.status is RunDispatchStatus.QUEUED
    assert dispatch.attempt_count == 0
    assert dispatch.max_attempts == 5
    assert dispatch.priority == 128
    assert dispatch.dispatch_epoch == 0
    assert (dispatch.claim_token, dispatch.claimed_by, dispatch.lease_until) == (None, None, None)
    assert dispatch.last_error is None
    assert (dispatch.created_at, dispatch.available_at, dispatch.updated_at) == (now, 0, now)
    assert dispatch.dispatch_id != mailbox.build_dispatch(request).dispatch_id
    hinted = mailbox.build_dispatch(request.hinted(dispatch_id="dispatch-42").delivered(priority=3))
    assert (hinted.dispatch_id, hinted.run_id, hinted.priority) == ("dispatch-42", "run-42", 3)


async def test_build_dispatch_requires_prepared_run_id(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(Noop())
    with pytest.raises(InternalError) as refused:
        mailbox.build_dispatch(RunActivation.new("thread-1", ["hi"]))
    assert refused.value.describe() == "internal error: run_id missing after preparation"


def test_mailbox_run_outcome_debug() -> None:
    transient = MailboxRunOutcome(kind=OutcomeKind.TRANSIENT_ERROR, error="oops")
    permanent = MailboxRunOutcome(kind=OutcomeKind.PERMANENT_ERROR, error="fatal")
    assert "COMPLETED" in repr(COMPLETED)
    assert "TRANSIENT_ERROR" in repr(transient)
    assert "oops" in repr(transient)
    assert "PERMANENT_ERROR" in repr(permanent)
    assert "fatal" in repr(permanent)


def test_mailbox_run_outcome_metric_labels_are_stable() -> None:
    assert COMPLETED.metric_label == "completed"
    assert (
        MailboxRunOutcome(kind=OutcomeKind.TRANSIENT_ERROR, error="retry").metric_label == "transient_error"
    )
    assert (
        MailboxRunOutcome(kind=OutcomeKind.PERMANENT_ERROR, error="fatal").metric_label == "permanent_error"
    )
    assert len(OutcomeKind) == 3


async def test_send_decision_unknown_id_returns_false(room: Room) -> None:
    executor = Deciding("known")
    mailbox = room.mailbox(executor)
    assert mailbox.send_decision("nonexistent", "tc-1", make_resume()) is False
    assert await mailbox.send_decision_live("nonexistent", "tc-1", make_resume()) is False
    assert executor.decided == []
    assert mailbox.send_decision("known", "tc-1", make_resume()) is True
    assert executor.decided == [("tc-1", make_resume())]
