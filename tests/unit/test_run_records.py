"""The records of runs alone: the selection of waiting messages, refusals, and reading back."""

from typing import Any

import pytest

from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import IllegalTransition, InvalidRecord, StoreCorrupt
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope
from postroom.contracts.messages import (
    Boundary,
    DeliveryMode,
    Granularity,
    Message,
    PendingMessage,
    Role,
    leading_barrier,
    select_pending,
)
from postroom.contracts.records import replace
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    Thread,
    WaitingReason,
)
from postroom.stores import codec
from table_rows import each_row

NOW = 1_700_000_000_000
QUEUED = RunDispatch.queued("d1", "t", "r1", created_at=NOW)
CLAIMED = QUEUED.claim(token="token", consumer="worker", lease_ms=30, now=NOW + 1)


def run(status: RunStatus = RunStatus.RUNNING, **details: Any) -> RunRecord:
    if status is RunStatus.WAITING:
        details.setdefault("waiting", RunWaitingState(reason=WaitingReason.USER_INPUT))
    if status is RunStatus.DONE:
        details.setdefault("finished_at", NOW)
    details.setdefault("updated_at", NOW)
    return RunRecord(**{"run_id": "r1", "thread_id": "t", "status": status, **details})


@each_row(
    "details",
    [
        *({"dispatch_id": " "}, {"dedupe_key": " "}, {"priority": -1}, {"max_attempts": 0}),
        *({"interruption_count": -1}, {"claim_token": "x"}, {"completed_at": NOW}, {"run_response": "x"}),
    ],
)
def test_a_dispatch_of_another_shape_is_refused(details: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        replace(QUEUED, **details)


def test_a_dispatch_that_has_ended_moves_no_more_and_one_in_the_queue_proves_no_claim() -> None:
    ended = QUEUED.cancelled(now=NOW)
    for move in (
        lambda: ended.cancelled(now=NOW),
        lambda: ended.superseded(reason="x", now=NOW),
        lambda: ended.claim(token="token", consumer="worker", lease_ms=30, now=NOW),
        lambda: QUEUED.claim_proof,
    ):
        with pytest.raises(IllegalTransition):
            move()


def test_the_barrier_before_a_new_message_is_found() -> None:
    barrier = pending("barrier", Boundary.RESUME_INPUT, barrier=True)
    assert leading_barrier((PLAIN, barrier), NEW) == barrier
    assert leading_barrier((PLAIN, barrier), Boundary.RESUME_INPUT) is None
    assert leading_barrier((PLAIN,), NEXT) is None


@each_row("options", [{"writer_id": "w"}, {"idempotency_key": "k"}])
def test_a_writer_of_an_event_and_its_key_come_together(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        CanonicalEventDraft(
            event_kind="k", scopes=(EventScope.run("r"),), payload={}, options=AppendOptions(**options)
        )


WAITS = {"waiting": RunWaitingState(reason=WaitingReason.USER_INPUT)}


@each_row(
    "status, changes",
    [
        *((status, {"finished_at": NOW}) for status in RunStatus if status is not RunStatus.DONE),
        *((status, WAITS) for status in RunStatus if status is not RunStatus.WAITING),
        (RunStatus.WAITING, {"waiting": None}),
        (RunStatus.DONE, {"finished_at": None}),
        *((RunStatus.RUNNING, {name: " "}) for name in ("run_id", "thread_id", "agent_id")),
    ],
)
def test_a_run_of_another_shape_is_refused(status: RunStatus, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        replace(run(status), **changes)
    for thread in ({"id": " "}, {"id": "t", "parent_thread_id": "t"}):
        with pytest.raises(InvalidRecord):
            Thread(**thread)


def pending(name: str, boundary: Boundary = Boundary.NEW_RUN, **mode: Any) -> PendingMessage:
    mode = {"boundary": boundary, **mode}
    message = Message.user(name, id=name)
    return PendingMessage(thread_id="t", message=message, position=1, mode=DeliveryMode(**mode))


EACH = [pending(one.value, one) for one in Boundary]
NEXT, NEW = Boundary.NEXT_STEP, Boundary.NEW_RUN
FOR = [
    pending("mine", NEXT, target_run_id="r1"),
    pending("theirs", NEXT, target_run_id="r2"),
    pending("only", NEXT, target_run_id="r2", fallback_to_new_run=False),
]
A1, A2, B1 = (pending(name, group=name[0]) for name in ("a1", "a2", "b1"))
PLAIN, ALONE = pending("plain"), pending("alone", granularity=Granularity.ONE)
FIRST, LAST, BARRIER = pending("first", NEXT), pending("last", NEXT), pending("barrier", barrier=True)


@each_row(
    "waiting, at, run_id, names",
    [
        # A boundary takes what an earlier one would have.
        (EACH, Boundary.INTERRUPT, "r1", "interrupt"),
        (EACH, NEXT, "r1", "interrupt next_step"),
        (EACH, Boundary.ON_NATURAL_END, "r1", "interrupt next_step on_natural_end"),
        (EACH, Boundary.RESUME_INPUT, "r1", "resume_input"),
        (EACH, NEW, "r1", "interrupt next_step on_natural_end new_run"),
        # What is for a run is read by it or by a new one.
        (FOR, NEXT, "r1", "mine"),
        (FOR, NEW, "r1", "mine theirs"),
        (FOR, NEW, None, "mine theirs"),
        (FOR, Boundary.ON_NATURAL_END, "r2", "theirs only"),
        # Those of other groups end a batch.
        ([A1, A2, B1, PLAIN], NEW, "r1", "a1 a2"),
        ([B1, A1], NEW, "r1", "b1"),
        ([PLAIN, A1], NEW, "r1", "plain"),
        # A barrier that is not read stops the selection.
        ([FIRST, BARRIER, LAST], NEXT, "r1", "first"),
        ([FIRST, PLAIN, LAST], NEXT, "r1", "first last"),
        ([FIRST, BARRIER, LAST], NEW, "r1", "first barrier last"),
        # What wants to be alone is read alone.
        ([ALONE, PLAIN, LAST], NEW, "r1", "alone"),
        ([PLAIN, LAST, ALONE], NEW, "r1", "plain last"),
        ([PLAIN, ALONE, LAST], NEW, "r1", "plain"),
        ([], NEW, "r1", ""),
    ],
)
def test_waiting_messages_are_selected_by_boundary_run_group_and_barrier(
    waiting: list[PendingMessage], at: Boundary, run_id: str | None, names: str
) -> None:
    assert [one.pending_id for one in select_pending(waiting, at, run_id)] == names.split()


RECORDS: list[Any] = [QUEUED, CLAIMED, run(), Message(role=Role.SYSTEM), Thread(id="t", custom={"k": [1]})]


@each_row("record", RECORDS)
def test_a_record_reads_back_whole_and_does_not_change(record: Any) -> None:
    text = codec.encode(record)
    assert codec.decode(type(record), text, where="x") == codec.decode(type(record), text.encode(), where="x")
    assert codec.decode(type(record), text, where="x") == record
    assert codec.decode_json(text, where="x").keys() <= set(
        record.__struct_fields__
    )  # defaults are not stored
    with pytest.raises(AttributeError):
        setattr(record, record.__struct_fields__[0], "x")
    with pytest.raises(TypeError):
        replace(record, no_such_field=1)


def changed(record: Any, **changes: Any) -> str:
    return codec.encode({**codec.decode_json(codec.encode(record), where="x"), **changes})


@each_row(
    "kind, text",
    [
        *((type(record), text) for record in RECORDS for text in ("", "{", "[]", "null")),
        *((RunDispatch, '{"priority": "high"}'), (Message, '{"role": "nobody"}')),
        *((RunDispatch, changed(QUEUED, status="Claimed")), (RunDispatch, changed(CLAIMED, status="Queued"))),
        *((RunDispatch, changed(QUEUED, attempt_count=99)), (RunRecord, changed(run(), status="done"))),
        (Thread, changed(Thread(id="t"), parent_thread_id="t")),
    ],
)
def test_what_is_no_record_is_named_as_corrupt(kind: Any, text: str) -> None:
    with pytest.raises(StoreCorrupt, match="row 'x' cannot be read"):
        codec.decode(kind, text, where="row 'x'")
