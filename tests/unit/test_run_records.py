"""The records of runs alone: the selection of waiting messages, refusals, and reading back."""

from collections.abc import Callable
from typing import Any

import pytest

from postroom.contracts.dispatch import RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.errors import IllegalTransition, InvalidRecord, StoreCorrupt
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope, EventVisibility
from postroom.contracts.messages import (
    Boundary,
    ContentBlock,
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
    TerminationKind,
    TerminationReason,
    Thread,
    Usage,
    WaitingReason,
)
from postroom.stores import codec
from table_rows import each_row

NOW = 1_700_000_000_000
QUEUED = RunDispatch.queued("d1", "t", "r1", created_at=NOW)
CLAIMED = QUEUED.claim(token="token", consumer="worker", lease_ms=30, now=NOW + 1)


def test_a_queued_dispatch_has_the_defaults_of_the_queue() -> None:
    assert (QUEUED.priority, QUEUED.max_attempts, QUEUED.attempt_count) == (128, 5, 0)
    assert (QUEUED.available_at, QUEUED.updated_at, QUEUED.dispatch_epoch) == (0, NOW, 0)


def test_statuses_are_written_in_pascal_case_and_labelled_in_snake_case() -> None:
    assert [(status.value, status.label, status.is_terminal) for status in RunDispatchStatus] == [
        ("Queued", "queued", False),
        ("Claimed", "claimed", False),
        ("Acked", "acked", True),
        ("Cancelled", "cancelled", True),
        ("Superseded", "superseded", True),
        ("DeadLetter", "dead_letter", True),
    ]


SHAPES = [
    QUEUED,
    CLAIMED,
    CLAIMED.acked(now=NOW),
    QUEUED.cancelled(now=NOW),
    QUEUED.superseded(reason="x", now=NOW),
    CLAIMED.dead_lettered(error="x", now=NOW),
]
RESULT = RunDispatchResult(run_id="r1", dispatch_instance_id="i", status=RunStatus.DONE)
MOVES: dict[str, tuple[set[str], Callable[[RunDispatch], object]]] = {
    "claim": ({"Queued"}, lambda row: row.claim(token="x", consumer="w", lease_ms=1, now=NOW)),
    "cancel": ({"Queued"}, lambda row: row.cancelled(now=NOW)),
    "supersede": ({"Queued", "Claimed"}, lambda row: row.superseded(reason="x", now=NOW)),
    "extend": ({"Claimed"}, lambda row: row.extend_lease(extension_ms=1, now=NOW)),
    "start": ({"Claimed"}, lambda row: row.record_dispatch_start("i", now=NOW)),
    "record": ({"Claimed"}, lambda row: row.record_run_result(RESULT, now=NOW)),
    "ack": ({"Claimed"}, lambda row: row.acked(now=NOW)),
    "nack": ({"Claimed"}, lambda row: row.nacked(error="x", delay_ms=0, now=NOW)),
    "release": ({"Claimed"}, lambda row: row.released(now=NOW)),
    "end lease": ({"Claimed"}, lambda row: row.lease_ended(now=NOW)),
    "dead letter": ({"Claimed"}, lambda row: row.dead_lettered(error="x", now=NOW)),
    "prove": ({"Claimed"}, lambda row: row.claim_proof),
}


@each_row("move", MOVES)
def test_a_dispatch_moves_only_where_there_is_an_arrow(move: str) -> None:
    starts, moved = MOVES[move]
    for row in SHAPES:
        if row.status.value in starts:
            assert moved(row) != row
            continue
        with pytest.raises(IllegalTransition):
            moved(row)


def run(status: RunStatus = RunStatus.RUNNING, **details: Any) -> RunRecord:
    if status is RunStatus.WAITING:
        details.setdefault("waiting", RunWaitingState(reason=WaitingReason.USER_INPUT))
    if status is RunStatus.DONE:
        details.setdefault("finished_at", NOW)
    details.setdefault("updated_at", NOW)
    return RunRecord(**{"run_id": "r1", "thread_id": "t", "status": status, **details})


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


def test_a_run_that_ended_says_why_and_when() -> None:
    failed = run(RunStatus.WAITING).ended(TerminationReason.error("broken"), now=NOW + 5, dispatch_id="d2")
    assert (failed.status, failed.waiting, failed.error) == (RunStatus.DONE, None, "broken")
    assert (failed.finished_at, failed.updated_at, failed.dispatch_id) == (NOW + 5, NOW + 5, "d2")
    ended = run(dispatch_id="d1", updated_at=NOW + 9).ended(TerminationReason.cancelled(), now=NOW + 5)
    assert (ended.error, ended.dispatch_id, ended.updated_at) == (None, "d1", NOW + 9)
    for kind in TerminationKind:
        waits = kind is TerminationKind.SUSPENDED
        assert TerminationReason(type=kind).run_status is (RunStatus.WAITING if waits else RunStatus.DONE)


def test_usage_is_summed_field_by_field() -> None:
    one = Usage(input_tokens=1, output_tokens=2, cost_micros=3, wall_ms=4)
    assert one + one == Usage(input_tokens=2, output_tokens=4, cost_micros=6, wall_ms=8)


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


def test_the_barrier_that_stands_before_a_new_message_is_found() -> None:
    barrier = pending("barrier", Boundary.RESUME_INPUT, barrier=True)
    assert leading_barrier((PLAIN, barrier), NEW) == barrier
    assert leading_barrier((PLAIN, barrier), Boundary.RESUME_INPUT) is None
    assert leading_barrier((PLAIN,), NEXT) is None


def test_the_text_of_a_message_is_that_of_its_text_blocks() -> None:
    blocks = (ContentBlock(text="one "), ContentBlock(type="thinking", text="hm"), ContentBlock(text="two"))
    assert Message(role=Role.ASSISTANT, content=blocks).text() == "one two"


def draft(**details: Any) -> CanonicalEventDraft:
    given: dict[str, Any] = {
        "scopes": (EventScope.thread("t"), EventScope.run("r1")),
        "event_kind": "Happened",
        "payload": {"a": 1, "b": [None]},
    }
    return CanonicalEventDraft(**{**given, **details})


@each_row(
    "details",
    [
        {"scopes": ()},
        {"scopes": (EventScope.thread("t"), EventScope.thread("u"))},
        {"event_kind": " "},
        {"options": AppendOptions(writer_id="w")},
        {"options": AppendOptions(idempotency_key="k")},
    ],
)
def test_an_event_of_another_shape_is_refused(details: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        draft(**details)


def test_the_digest_of_an_event_leaves_out_who_wrote_it_and_how() -> None:
    same = (
        draft(origin="another"),
        draft(schema_version=9),
        draft(payload={"b": [None], "a": 1}),
        draft(scopes=(EventScope.run("r1"), EventScope.thread("t"))),
        draft(options=AppendOptions(writer_id="w", idempotency_key="k")),
    )
    assert {one.digest for one in same} == {draft().digest}
    other = (
        draft(event_kind="Other"),
        draft(payload={}),
        draft(scopes=(EventScope.thread("t"),)),
        draft(causation_id="c"),
        draft(correlation_id="c"),
        draft(visibility=EventVisibility.AUDIT),
    )
    assert len({one.digest for one in (*other, draft())}) == len(other) + 1


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
        (RunDispatch, '{"priority": "high"}'),
        (Message, '{"role": "nobody"}'),
        (RunDispatch, changed(QUEUED, status="Claimed")),
        (RunDispatch, changed(CLAIMED, status="Queued")),
        (RunDispatch, changed(QUEUED, attempt_count=99)),
        (RunRecord, changed(run(), status="done")),
        (Thread, changed(Thread(id="t"), parent_thread_id="t")),
    ],
)
def test_what_is_no_record_is_named_as_corrupt(kind: Any, text: str) -> None:
    with pytest.raises(StoreCorrupt, match="row 'x' cannot be read"):
        codec.decode(kind, text, where="row 'x'")


def test_text_that_is_no_json_is_named_as_corrupt() -> None:
    with pytest.raises(StoreCorrupt, match="row 'x'"):
        codec.decode_json("{", where="row 'x'")
