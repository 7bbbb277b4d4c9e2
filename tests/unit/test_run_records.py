"""The records of runs by themselves: how they move, what of them is selected, and that they read back."""

from collections.abc import Callable
from typing import Any

import pytest

from postroom.contracts.dispatch import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    INTERRUPTED,
    LEASE_ENDED,
    NO_ATTEMPTS_LEFT,
    OPEN,
    STALE_EPOCH,
    TERMINAL,
    UNHANDLED_AT_FIRST,
    Claim,
    Interrupt,
    RunDispatch,
    RunDispatchResult,
    RunDispatchStatus,
)
from postroom.contracts.errors import IllegalTransition, InvalidRecord, StoreCorrupt
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope, EventVisibility
from postroom.contracts.messages import (
    Boundary,
    ContentBlock,
    DeliveryMode,
    Granularity,
    Message,
    MessageMetadata,
    PendingMessage,
    PendingVersion,
    Role,
    ToolCall,
    Visibility,
    leading_barrier,
    refuse_broken_delta,
    select_pending,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import thread_lock
from postroom.contracts.runs import (
    LEGAL_MOVES,
    PersistedState,
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    Thread,
    Usage,
    WaitingReason,
)
from postroom.stores import codec
from table_rows import each_row

NOW = 1_700_000_000_000
PROJECTION = ("dispatch_instance_id", "run_status", "termination", "run_response", "run_error")
CLAIM_FIELDS = ("claim_token", "claimed_by", "lease_until")


def queued(**details: Any) -> RunDispatch:
    return RunDispatch.queued("d1", "t", "r1", created_at=NOW, **details)


def claimed(**details: Any) -> RunDispatch:
    return queued(**details).claim(token="token", consumer="worker", lease_ms=30, now=NOW + 1)


def result(**details: Any) -> RunDispatchResult:
    given: dict[str, Any] = {
        "run_id": "r1",
        "dispatch_instance_id": "instance",
        "status": RunStatus.DONE,
        "termination": TerminationReason.natural_end(),
        "response": "an answer",
        "error": "a complaint",
    }
    return RunDispatchResult(**{**given, **details})


def reported(**details: Any) -> RunDispatch:
    begun = claimed(**details).record_dispatch_start("instance", now=NOW + 2)
    return begun.record_run_result(result(), now=NOW + 3)


IN_STATUS: dict[RunDispatchStatus, RunDispatch] = {
    RunDispatchStatus.QUEUED: queued(),
    RunDispatchStatus.CLAIMED: claimed(),
    RunDispatchStatus.ACKED: claimed().acked(now=NOW),
    RunDispatchStatus.CANCELLED: queued().cancelled(now=NOW),
    RunDispatchStatus.SUPERSEDED: queued().superseded(reason="x", now=NOW),
    RunDispatchStatus.DEAD_LETTER: claimed().dead_lettered(error="x", now=NOW),
}
MOVES: dict[str, tuple[Callable[[RunDispatch], RunDispatch], set[RunDispatchStatus]]] = {
    "claim": (
        lambda row: row.claim(token="x", consumer="w", lease_ms=1, now=NOW),
        {RunDispatchStatus.QUEUED},
    ),
    "cancelled": (lambda row: row.cancelled(now=NOW), {RunDispatchStatus.QUEUED}),
    "superseded": (lambda row: row.superseded(reason="x", now=NOW), set(OPEN)),
    **{
        name: (move, {RunDispatchStatus.CLAIMED})
        for name, move in {
            "extend_lease": lambda row: row.extend_lease(extension_ms=1, now=NOW),
            "record_dispatch_start": lambda row: row.record_dispatch_start("i", now=NOW),
            "record_run_result": lambda row: row.record_run_result(result(), now=NOW),
            "acked": lambda row: row.acked(now=NOW),
            "nacked": lambda row: row.nacked(error="x", delay_ms=0, now=NOW),
            "released": lambda row: row.released(now=NOW),
            "lease_ended": lambda row: row.lease_ended(now=NOW),
            "dead_lettered": lambda row: row.dead_lettered(error="x", now=NOW),
        }.items()
    },
}


def test_a_queued_dispatch_has_the_defaults_of_the_queue() -> None:
    row = queued()
    assert (row.priority, row.max_attempts, row.attempt_count) == (DEFAULT_PRIORITY, DEFAULT_MAX_ATTEMPTS, 0)
    assert (DEFAULT_PRIORITY, DEFAULT_MAX_ATTEMPTS) == (128, 5)
    assert (row.available_at, row.updated_at, row.dispatch_epoch) == (0, NOW, 0)
    assert row.reconciled
    assert queued(available_at=NOW + 9).available_at == NOW + 9


def test_statuses_are_written_in_pascal_case_and_labelled_in_snake_case() -> None:
    assert [(status.value, status.label) for status in RunDispatchStatus] == [
        ("Queued", "queued"),
        ("Claimed", "claimed"),
        ("Acked", "acked"),
        ("Cancelled", "cancelled"),
        ("Superseded", "superseded"),
        ("DeadLetter", "dead_letter"),
    ]
    assert {status for status in RunDispatchStatus if status.is_terminal} == set(TERMINAL)
    assert set(TERMINAL) | set(OPEN) == set(RunDispatchStatus)


@each_row("status", RunDispatchStatus)
@each_row("move", MOVES)
def test_a_dispatch_moves_only_where_there_is_an_arrow(move: str, status: RunDispatchStatus) -> None:
    transition, starts = MOVES[move]
    assert IN_STATUS[status].status is status
    if status in starts:
        assert transition(IN_STATUS[status]) != IN_STATUS[status]
        return
    with pytest.raises(IllegalTransition):
        transition(IN_STATUS[status])


def test_a_move_that_is_refused_says_what_was_needed() -> None:
    with pytest.raises(IllegalTransition, match="must be Queued before claim, and is Acked"):
        MOVES["claim"][0](IN_STATUS[RunDispatchStatus.ACKED])


def test_a_claim_gives_owner_token_and_lease_and_counts_no_attempt() -> None:
    row = claimed()
    assert [getattr(row, name) for name in CLAIM_FIELDS] == ["token", "worker", NOW + 31]
    assert (row.attempt_count, row.claimed_at, row.updated_at) == (0, NOW + 1, NOW + 1)
    assert row.claim_proof == Claim(dispatch_id="d1", token="token")
    with pytest.raises(IllegalTransition):
        _ = queued().claim_proof


def test_an_extension_counts_from_now() -> None:
    row = claimed().extend_lease(extension_ms=5, now=NOW + 100)
    assert (row.lease_until, row.updated_at, row.claim_token) == (NOW + 105, NOW + 100, "token")


def test_a_start_clears_what_an_earlier_execution_reported() -> None:
    row = reported().record_dispatch_start("second", now=NOW + 9)
    assert [getattr(row, name) for name in PROJECTION] == ["second", RunStatus.RUNNING, None, None, None]
    assert row.completed_at is None


def test_a_result_stays_with_the_claimed_row() -> None:
    row = reported()
    assert [getattr(row, name) for name in PROJECTION] == [
        "instance",
        RunStatus.DONE,
        TerminationReason.natural_end(),
        "an answer",
        "a complaint",
    ]
    assert (row.status, row.completed_at) == (RunDispatchStatus.CLAIMED, NOW + 3)


def test_a_result_of_another_run_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="'another'"):
        claimed().record_run_result(result(run_id="another"), now=NOW)


def test_attempts_are_used_up_by_nacks_and_by_lost_leases(subtests: pytest.Subtests) -> None:
    for attempts, allowed, status in [
        (0, 2, RunDispatchStatus.QUEUED),
        (1, 2, RunDispatchStatus.DEAD_LETTER),
        (0, 1, RunDispatchStatus.DEAD_LETTER),
        (3, 5, RunDispatchStatus.QUEUED),
        (4, 5, RunDispatchStatus.DEAD_LETTER),
    ]:
        with subtests.test(attempts=attempts, allowed=allowed, status=status):
            row = replace(claimed(max_attempts=allowed), attempt_count=attempts)
            for after in (row.nacked(error="x", delay_ms=0, now=NOW), row.lease_ended(now=NOW)):
                assert (after.status, after.attempt_count) == (status, attempts + 1)
                assert after.reconciled == (status is RunDispatchStatus.QUEUED)


def test_what_is_queued_again_carries_nothing_of_the_execution() -> None:
    given_back = {
        "nack": reported().nacked(error="busy", delay_ms=5, now=NOW + 9),
        "release": replace(reported(), last_error="before").released(now=NOW + 9),
        "lease": reported().lease_ended(now=NOW + 9),
    }
    for row in given_back.values():
        assert row.status is RunDispatchStatus.QUEUED
        assert {
            getattr(row, name) for name in (*PROJECTION, *CLAIM_FIELDS, "completed_at", "claimed_at")
        } == {None}
        assert row.updated_at == NOW + 9
    assert [row.available_at for row in given_back.values()] == [NOW + 14, 0, 0]
    assert [row.attempt_count for row in given_back.values()] == [1, 0, 1]
    assert [row.last_error for row in given_back.values()] == ["busy", "before", LEASE_ENDED]


def test_a_dead_letter_of_a_lost_lease_carries_no_result_and_one_of_a_nack_does() -> None:
    lost = reported(max_attempts=1).lease_ended(now=NOW + 9)
    assert {getattr(lost, name) for name in PROJECTION} == {None}
    assert (lost.last_error, lost.completed_at) == (NO_ATTEMPTS_LEFT.format(LEASE_ENDED), NOW + 9)
    assert lost.last_error == "lease expired; max attempts reached"
    failed = reported(max_attempts=1).nacked(error="x", delay_ms=5, now=NOW + 9)
    assert (failed.run_response, failed.last_error) == ("an answer", "x")


def test_what_ended_has_no_owner_and_says_when() -> None:
    for status in TERMINAL:
        row = IN_STATUS[status]
        assert {getattr(row, name) for name in CLAIM_FIELDS} == {None}
        assert (row.completed_at, row.updated_at) == (NOW, NOW)
        assert row.reconciled == (status not in UNHANDLED_AT_FIRST)


def test_an_ack_keeps_what_was_reported_and_superseding_drops_it() -> None:
    assert reported().acked(now=NOW).run_response == "an answer"
    assert reported().dead_lettered(error="x", now=NOW).run_response == "an answer"
    dropped = reported().superseded(reason=STALE_EPOCH, now=NOW)
    assert {getattr(dropped, name) for name in PROJECTION} == {None}
    assert dropped.last_error == STALE_EPOCH
    assert INTERRUPTED == "queued dispatch superseded by interrupt"


def test_enqueuing_takes_the_epoch_of_the_thread_and_a_queued_row_alone() -> None:
    assert queued().prepared_for_enqueue(epoch=3) == replace(queued(), dispatch_epoch=3)
    for status in (RunDispatchStatus.CLAIMED, *TERMINAL):
        with pytest.raises(InvalidRecord, match="must start as Queued"):
            IN_STATUS[status].prepared_for_enqueue(epoch=0)


def test_a_queued_dispatch_of_another_shape_is_refused(subtests: pytest.Subtests) -> None:
    for changes, text in [
        ({"dispatch_id": " "}, "needs a dispatch id"),
        ({"thread_id": ""}, "needs a dispatch id"),
        ({"run_id": "\t"}, "needs a dispatch id"),
        ({"dedupe_key": " "}, "blank dedupe key"),
        ({"priority": -1}, "priority from 0 to 255"),
        ({"priority": 256}, "priority from 0 to 255"),
        ({"max_attempts": 0}, "at least one attempt"),
        ({"attempt_count": -1}, "not more than max_attempts"),
        ({"attempt_count": 6}, "not more than max_attempts"),
        ({"completed_at": NOW}, "must not carry completed_at"),
        *(({name: "x"}, "must not carry claim fields") for name in ("claim_token", "claimed_by")),
        ({"lease_until": NOW}, "must not carry claim fields"),
        *(({name: "x"}, "must not carry runtime result fields") for name in PROJECTION),
    ]:
        with subtests.test(changes=changes, text=text), pytest.raises(InvalidRecord, match=text):
            replace(queued(), **changes)


def test_a_claimed_dispatch_without_its_claim_is_refused(subtests: pytest.Subtests) -> None:
    for changes in [{"claim_token": None}, {"claim_token": ""}, {"claimed_by": " "}, {"lease_until": None}]:
        with (
            subtests.test(changes=changes),
            pytest.raises(InvalidRecord, match="must carry claim_token, claimed_by, and lease_until"),
        ):
            replace(claimed(), **changes)


def test_an_ended_dispatch_of_another_shape_is_refused(subtests: pytest.Subtests) -> None:
    for status in TERMINAL:
        with subtests.test(status=status):
            for name in CLAIM_FIELDS:
                with pytest.raises(InvalidRecord, match="must not carry active lease fields"):
                    replace(IN_STATUS[status], **{name: NOW if name == "lease_until" else "x"})
            with pytest.raises(InvalidRecord, match="must carry completed_at"):
                replace(IN_STATUS[status], completed_at=None)


def test_a_priority_may_be_at_either_end() -> None:
    assert [queued(priority=number).priority for number in (0, 255)] == [0, 255]


def test_an_interrupt_counts_what_it_superseded() -> None:
    done = Interrupt(new_dispatch_epoch=1, superseded_dispatches=(queued(), queued()))
    assert (done.superseded_count, Interrupt(new_dispatch_epoch=1).superseded_count) == (2, 0)


def run(status: RunStatus = RunStatus.RUNNING, **details: Any) -> RunRecord:
    if status is RunStatus.WAITING:
        details.setdefault("waiting", RunWaitingState(reason=WaitingReason.USER_INPUT))
    if status is RunStatus.DONE:
        details.setdefault("finished_at", NOW)
    details.setdefault("updated_at", NOW)
    return RunRecord(**{"run_id": "r1", "thread_id": "t", "status": status, **details})


@each_row("before", RunStatus)
@each_row("after", RunStatus)
def test_a_run_moves_only_where_there_is_an_arrow(before: RunStatus, after: RunStatus) -> None:
    legal = after in LEGAL_MOVES[before]
    assert legal == (before is after or (before is not RunStatus.DONE and after is not RunStatus.CREATED))
    if legal:
        run(after).refuse_illegal_move(run(before))
        return
    with pytest.raises(IllegalTransition):
        run(after).refuse_illegal_move(run(before))


def test_a_new_run_may_be_anything_and_none_changes_its_thread() -> None:
    for status in RunStatus:
        run(status).refuse_illegal_move(None)
    with pytest.raises(IllegalTransition, match="thread"):
        run(thread_id="u").refuse_illegal_move(run())


def test_a_run_of_another_shape_is_refused(subtests: pytest.Subtests) -> None:
    for status, changes in [
        (RunStatus.CREATED, {"finished_at": NOW}),
        (RunStatus.RUNNING, {"finished_at": NOW}),
        (RunStatus.RUNNING, {"waiting": RunWaitingState(reason=WaitingReason.USER_INPUT)}),
        (RunStatus.CREATED, {"waiting": RunWaitingState(reason=WaitingReason.USER_INPUT)}),
        (RunStatus.WAITING, {"waiting": None}),
        (RunStatus.WAITING, {"finished_at": NOW}),
        (RunStatus.DONE, {"finished_at": None}),
        (RunStatus.DONE, {"waiting": RunWaitingState(reason=WaitingReason.USER_INPUT)}),
        (RunStatus.RUNNING, {"run_id": " "}),
        (RunStatus.RUNNING, {"thread_id": ""}),
        (RunStatus.RUNNING, {"agent_id": " "}),
    ]:
        with subtests.test(status=status, changes=changes), pytest.raises(InvalidRecord):
            replace(run(status), **changes)


def test_a_run_that_ended_says_why_and_when() -> None:
    failed = run(RunStatus.WAITING).ended(TerminationReason.error("broken"), now=NOW + 5, dispatch_id="d2")
    assert (failed.status, failed.waiting, failed.error) == (RunStatus.DONE, None, "broken")
    assert (failed.finished_at, failed.updated_at, failed.dispatch_id) == (NOW + 5, NOW + 5, "d2")
    ended = run(dispatch_id="d1", updated_at=NOW + 9).ended(TerminationReason.cancelled(), now=NOW + 5)
    assert (ended.error, ended.dispatch_id, ended.updated_at) == (None, "d1", NOW + 9)


def test_only_a_suspended_run_waits_when_it_ends() -> None:
    for kind in TerminationKind:
        waits = kind is TerminationKind.SUSPENDED
        expected = RunStatus.WAITING if waits else RunStatus.DONE
        assert TerminationReason(type=kind).run_status is expected


def test_a_run_says_whether_it_is_open_and_what_it_waits_for() -> None:
    assert [run(status).is_open for status in RunStatus] == [True, True, True, False]
    background = RunWaitingState(reason=WaitingReason.BACKGROUND_TASKS)
    assert run(RunStatus.WAITING, waiting=background).is_background_task_waiting
    assert not run(RunStatus.WAITING).is_background_task_waiting
    assert not run().is_background_task_waiting


def test_usage_is_summed_field_by_field() -> None:
    one = Usage(input_tokens=1, output_tokens=2, cost_micros=3, wall_ms=4)
    assert one + one == Usage(input_tokens=2, output_tokens=4, cost_micros=6, wall_ms=8)


def pointers(thread: Thread) -> tuple[str | None, str | None, str | None]:
    return thread.active_run_id, thread.open_run_id, thread.latest_run_id


def test_a_thread_points_to_what_its_run_is() -> None:
    empty = Thread(id="t")
    assert pointers(empty.after(run(RunStatus.CREATED))) == (None, "r1", "r1")
    assert pointers(empty.after(run(RunStatus.RUNNING))) == ("r1", "r1", "r1")
    assert pointers(empty.after(run(RunStatus.WAITING))) == (None, "r1", "r1")
    assert pointers(empty.after(run(RunStatus.DONE))) == (None, None, "r1")
    running = empty.after(run(RunStatus.RUNNING))
    assert pointers(running.after(run(RunStatus.WAITING))) == (None, "r1", "r1")
    assert pointers(running.after(run(RunStatus.DONE))) == (None, None, "r1")
    assert pointers(running.after(run(RunStatus.DONE, run_id="r2"))) == ("r1", "r1", "r2")
    assert pointers(running.after(run(RunStatus.CREATED, run_id="r2"))) == ("r1", "r2", "r2")


def test_an_older_run_only_lets_go() -> None:
    running = Thread(id="t").after(run(RunStatus.RUNNING))
    older = {"run_id": "r0", "updated_at": NOW - 1}
    for status in RunStatus:
        assert running.after(run(status, **older)) == running
    late = running.after(run(RunStatus.DONE, updated_at=NOW - 1))
    assert pointers(late) == (None, None, "r1")
    assert late.latest_run_updated_at == NOW


def test_a_thread_of_another_shape_is_refused() -> None:
    for details in ({"id": " "}, {"id": "t", "parent_thread_id": "t"}):
        with pytest.raises(InvalidRecord):
            Thread(**details)


def pending(name: str, **mode: Any) -> PendingMessage:
    return PendingMessage(
        thread_id="t", message=Message.user(name, id=name), position=1, mode=DeliveryMode(**mode)
    )


def selected(*waiting: PendingMessage, at: Boundary, run_id: str | None = "r1") -> list[str]:
    return [one.pending_id for one in select_pending(waiting, at, run_id)]


EACH = tuple(pending(one.value, boundary=one) for one in Boundary)


def test_a_boundary_takes_what_an_earlier_one_would_have(subtests: pytest.Subtests) -> None:
    for boundary, names in [
        (Boundary.INTERRUPT, ["interrupt"]),
        (Boundary.NEXT_STEP, ["interrupt", "next_step"]),
        (Boundary.ON_NATURAL_END, ["interrupt", "next_step", "on_natural_end"]),
        (Boundary.RESUME_INPUT, ["resume_input"]),
        (Boundary.NEW_RUN, ["interrupt", "next_step", "on_natural_end", "new_run"]),
    ]:
        with subtests.test(boundary=boundary, names=names):
            assert selected(*EACH, at=boundary) == names


def test_what_is_for_a_run_is_read_by_it_or_by_a_new_one() -> None:
    mine = pending("mine", boundary=Boundary.NEXT_STEP, target_run_id="r1")
    theirs = pending("theirs", boundary=Boundary.NEXT_STEP, target_run_id="r2")
    only = pending("only", boundary=Boundary.NEXT_STEP, target_run_id="r2", fallback_to_new_run=False)
    assert selected(mine, theirs, only, at=Boundary.NEXT_STEP) == ["mine"]
    assert selected(mine, theirs, only, at=Boundary.NEW_RUN, run_id="r1") == ["mine", "theirs"]
    assert selected(mine, theirs, only, at=Boundary.NEW_RUN, run_id=None) == ["mine", "theirs"]
    assert selected(mine, theirs, only, at=Boundary.ON_NATURAL_END, run_id="r2") == ["theirs", "only"]


def test_those_of_other_groups_end_a_batch() -> None:
    a1, a2, b1, plain = (pending(n, group=g) for n, g in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("p", None)))
    assert selected(a1, a2, b1, plain, at=Boundary.NEW_RUN) == ["a1", "a2"]
    assert selected(b1, a1, at=Boundary.NEW_RUN) == ["b1"]
    assert selected(plain, a1, at=Boundary.NEW_RUN) == ["p"]


def test_a_barrier_that_is_not_read_stops_the_selection() -> None:
    first, last = (pending(name, boundary=Boundary.NEXT_STEP) for name in ("first", "last"))
    barrier = pending("barrier", boundary=Boundary.NEW_RUN, barrier=True)
    plain = pending("plain", boundary=Boundary.NEW_RUN)
    assert selected(first, barrier, last, at=Boundary.NEXT_STEP) == ["first"]
    assert selected(first, plain, last, at=Boundary.NEXT_STEP) == ["first", "last"]
    assert selected(first, barrier, last, at=Boundary.NEW_RUN) == ["first", "barrier", "last"]


def test_what_wants_to_be_alone_is_read_alone() -> None:
    alone = pending("alone", granularity=Granularity.ONE)
    one, two = pending("one"), pending("two")
    assert selected(alone, one, two, at=Boundary.NEW_RUN) == ["alone"]
    assert selected(one, two, alone, at=Boundary.NEW_RUN) == ["one", "two"]
    assert selected(one, alone, two, at=Boundary.NEW_RUN) == ["one"]
    assert selected(at=Boundary.NEW_RUN) == []


def test_the_barrier_that_stands_before_a_new_message_is_found() -> None:
    plain = pending("plain", boundary=Boundary.NEW_RUN)
    barrier = pending("barrier", boundary=Boundary.RESUME_INPUT, barrier=True)
    assert leading_barrier((plain, barrier), Boundary.NEW_RUN) == barrier
    assert leading_barrier((plain, barrier), Boundary.RESUME_INPUT) is None
    assert leading_barrier((plain,), Boundary.NEXT_STEP) is None


def test_a_pending_message_names_its_version() -> None:
    entry = replace(pending("m1"), revision=3)
    assert (entry.pending_id, entry.version) == ("m1", PendingVersion(pending_id="m1", revision=3))


def test_messages_that_cannot_be_appended_are_refused(subtests: pytest.Subtests) -> None:
    for delta in [
        [Message.user("no id")],
        [Message.user("x", id="m1"), Message.user("y", id="m1")],
        [Message(role=Role.TOOL, id="m1")],
        [Message.assistant("x", id="m1", tool_calls=[ToolCall(id="", name="n")])],
    ]:
        with subtests.test(delta=delta), pytest.raises(InvalidRecord):
            refuse_broken_delta([Message.user("good", id="m0"), *delta])


def test_messages_that_can_be_appended_are_not_refused() -> None:
    calls = [ToolCall(id="c", name="n")]
    refuse_broken_delta([])
    refuse_broken_delta([Message.assistant("", id="m1", tool_calls=calls), Message.tool("c", "x", id="m2")])


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


def test_an_event_of_another_shape_is_refused(subtests: pytest.Subtests) -> None:
    for details in [
        {"scopes": ()},
        {"scopes": (EventScope.thread("t"), EventScope.thread("u"))},
        {"event_kind": " "},
        {"options": AppendOptions(writer_id="w")},
        {"options": AppendOptions(idempotency_key="k")},
    ]:
        with subtests.test(details=details), pytest.raises(InvalidRecord):
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


FULL_MESSAGE = Message(
    role=Role.ASSISTANT,
    id="m: 'ü' 東京",
    content=(ContentBlock(text="x\n\u2028"), ContentBlock(type="image", data={"size": [1, 2.5, None]})),
    tool_calls=(ToolCall(id="c", name="n", arguments={"a": {"b": [True]}}),),
    tool_call_id="c",
    visibility=Visibility.INTERNAL,
    metadata=MessageMetadata(run_id="r1", step_index=2, sender_agent_id="a", compacts=(1, 2)),
)
FULL_RUN = run(
    RunStatus.WAITING,
    waiting=RunWaitingState(
        reason=WaitingReason.TOOL_PERMISSION,
        tickets=(RunWaitingTicket(ticket_id="k", tool_call_id="c", arguments=[1]),),
    ),
    termination=TerminationReason(type=TerminationKind.STOPPED, value="max_rounds", detail="9"),
    usage=Usage(input_tokens=1),
    state=PersistedState(revision=3, extensions={"x": {"y": [1]}}),
    output_message_ids=("m1", "m2"),
)
RECORDS: list[Any] = [
    *IN_STATUS.values(),
    reported(priority=0, dedupe_key="k", deadline_at=NOW, tenant="acme"),
    FULL_MESSAGE,
    Message(role=Role.SYSTEM),
    FULL_RUN,
    *(run(status) for status in RunStatus),
    DeliveryMode(boundary=Boundary.NEXT_STEP, granularity=Granularity.ONE, barrier=True, target_run_id="r"),
    TerminationReason.error("x: 'ü'"),
    Thread(id="t", title="a title", custom={"k": [1, None]}, message_count=3, latest_run_updated_at=NOW),
]


def test_a_record_reads_back_as_it_was_written(subtests: pytest.Subtests) -> None:
    for record in RECORDS:
        with subtests.test(record=record):
            text = codec.encode(record)
            read = codec.decode(type(record), text, where="row 'x'")
            assert read == record
            assert codec.decode(type(record), text.encode(), where="row 'x'") == record
            assert set(record.__struct_fields__) == codec.decode_json(text, where="x").keys()


def test_a_record_does_not_change(subtests: pytest.Subtests) -> None:
    for record in RECORDS:
        name = record.__struct_fields__[0]
        with subtests.test(record=record), pytest.raises(AttributeError):
            setattr(record, name, getattr(record, name))
        with subtests.test(record=record), pytest.raises(TypeError):
            replace(record, no_such_field=1)


def test_what_is_no_record_is_named_as_corrupt(subtests: pytest.Subtests) -> None:
    for text in ["", "{", "[]", '{"priority": "high"}', "null", '{"role": "nobody"}']:
        for kind in [RunDispatch, RunRecord, Message, Thread]:
            with (
                subtests.test(text=text, kind=kind),
                pytest.raises(StoreCorrupt, match="row 'x' does not read back"),
            ):
                codec.decode(kind, text, where="row 'x'")


def test_a_record_that_breaks_its_shape_is_named_as_corrupt() -> None:
    for record, change in (
        (queued(), {"status": "Claimed"}),
        (claimed(), {"status": "Queued"}),
        (queued(), {"attempt_count": 99}),
        (run(), {"status": "done"}),
        (Thread(id="t"), {"parent_thread_id": "t"}),
    ):
        broken = {**codec.decode_json(codec.encode(record), where="x"), **change}
        with pytest.raises(StoreCorrupt, match="row 'x' does not read back"):
            codec.decode(type(record), codec.encode(broken), where="row 'x'")


def test_text_that_is_no_json_is_named_as_corrupt() -> None:
    with pytest.raises(StoreCorrupt, match="row 'x'"):
        codec.decode_json("{", where="row 'x'")


def test_a_thread_is_locked_by_the_key_of_its_log() -> None:
    assert thread_lock("t") == EventScope.thread("t").key
