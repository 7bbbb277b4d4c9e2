"""Accepted work, single or many, in the foreground and queued; refusals; cancel and interrupt."""

import asyncio
from collections import Counter

import pytest

from dispatch.conftest import both_engines
from dispatch_room import (
    ACKED,
    CANCELLED,
    CLAIMED,
    ENDED_BY_CANCEL,
    QUEUED,
    SUPERSEDED,
    AgentUnknown,
    Blocking,
    Counting,
    Deaf,
    ImmediateLocalCancel,
    Noop,
    as_time_passes,
    ask,
    asked_for,
    done,
    drop,
    enqueue_prepared_dispatch,
    events_of,
    kinds_of,
    listening,
    make_run,
    only,
    operations,
    read_to_end,
    runs_ended,
    said,
    sample_dispatch,
    until,
    waiting_run,
)
from postroom.contracts import errors
from postroom.contracts.activation import AdapterKind, BusyPolicy, RunActivation, RunMode
from postroom.contracts.agent_events import RunFinish
from postroom.contracts.events import EventScope
from postroom.contracts.live import LiveCommandKind
from postroom.contracts.messages import Message, Role
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery, ThreadCommit
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import ACTIVE_RUN_CONFLICT_MESSAGE, MailboxConfig
from postroom.dispatch.control import live_target
from postroom.dispatch.events import StoreEventPublisher
from postroom.dispatch.submission import MailboxDispatchStatus
from postroom.testing import ManualClock
from postroom.testing.run_faults import failing_changes
from table_rows import each_row

WAITS = MailboxConfig(cancel_wait_ms=250, cancel_poll_ms=25)
PATIENT = MailboxConfig(cancel_wait_ms=10**9, cancel_poll_ms=25)
RUNNING = MailboxDispatchStatus.RUNNING


def telling(room, executor, **settings):
    """Return a mailbox that tells the log of the room."""
    return room.mailbox(
        executor, publisher=StoreEventPublisher(room.stores.events), origin="server", **settings
    )


async def assert_cancelled(room, of):
    run = await room.run(of)
    assert ((run.status, run.termination), run.dispatch_id) == (ENDED_BY_CANCEL, of.dispatch_id)


# Behind the others.


async def test_submit_background_enqueues_dispatch(room):
    result = await room.mailbox(AgentUnknown()).submit_background(ask())
    [row] = (await room.rows()).values()
    assert (result.thread_id, result.dispatch_id, result.run_id) == ("t", row.dispatch_id, row.run_id)
    assert (await room.run(result)).dispatch_id == result.dispatch_id != result.run_id
    assert result.run_id


async def test_submit_background_delivers_scheduled_policy_context(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(ask().traced(adapter=AdapterKind.ACP))
    await mailbox.settled()
    [trace] = [one.trace for one in executor.activations]
    assert (trace.run_mode, trace.adapter) == (RunMode.SCHEDULED, AdapterKind.ACP)
    assert trace.dispatch_id == result.dispatch_id
    assert (await room.row(result)).dispatch_instance_id == trace.session_id != ""


async def test_list_dispatches_returns_entries(room):
    executor = Blocking()
    mailbox, results = room.mailbox(executor), []
    for number in range(3):
        results.append(await mailbox.submit_background(ask(agent_id=f"agent-{number}")))
        room.passes(milliseconds=1)
    await executor.started.get()
    rows = await mailbox.list_dispatches("t")
    ids = [(one.dispatch_id, one.run_id) for one in results]
    assert [(row.dispatch_id, row.run_id) for row in rows] == ids
    assert [row.status for row in rows] == [CLAIMED, QUEUED, QUEUED]
    assert [(await room.run(one)).agent_id for one in results] == ["agent-0", "agent-1", "agent-2"]
    executor.release.set()
    await mailbox.settled()
    rows = await mailbox.list_dispatches("t", (ACKED,))
    assert [(row.dispatch_id, row.run_id) for row in rows] == ids


async def test_submit_background_returns_correct_status(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    first, second = await mailbox.submit_background(ask()), await mailbox.submit_background(ask())
    assert (first.status, second.status) == (RUNNING, MailboxDispatchStatus.QUEUED)
    executor.release.set()
    await mailbox.settled()
    assert [one.run_id for one in executor.activations] == [first.run_id, second.run_id]
    assert first.run_id != second.run_id


async def test_priority_goes_before_age_and_age_does_not_hang_on_the_clocks_of_those_who_submit(room):
    mailbox, results = room.mailbox(Noop(), config=MailboxConfig(max_concurrent_runs=0)), []
    for minutes in (0, -5, 3, -3):
        room.passes(minutes=minutes)
        results += [(await mailbox.submit_background(ask())).dispatch_id for _ in range(3)]
    first = await mailbox.submit_background(ask(priority=1))
    assert list(await room.rows()) == [first.dispatch_id, *results]
    room.passes(hours=1)
    executor = Counting()
    heir = room.mailbox(executor)
    await heir.poll()
    await heir.settled()
    assert asked_for(executor) == [first.dispatch_id, *results]


@both_engines
async def test_reject_accepts_exactly_one_of_many_at_once(room):
    executor = Blocking()
    mailbox, accepted, rejected = room.mailbox(executor), [], []

    async def submit():
        try:
            accepted.append(await mailbox.submit_background(ask(), strategy=BusyPolicy.REJECT))
        except errors.SubmissionRejected as error:
            rejected.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(submit())
    assert (len(accepted), len(rejected), await room.texts()) == (1, 19, ["go"])
    executor.release.set()
    await room.acked(*accepted)


async def test_a_queued_submission_can_be_read_along_and_joins_no_other(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    for strategy in (BusyPolicy.STEER, BusyPolicy.COLLECT):
        with pytest.raises(errors.InvalidSubmission):
            await mailbox.submit(ask(), strategy=strategy)
    assert await room.rows() == {}
    await mailbox.submit_background(ask())
    await executor.started.get()
    result, stream = await mailbox.submit(ask(), strategy=BusyPolicy.QUEUE)
    assert result.status == "queued"
    executor.release.set()
    [told] = await read_to_end(stream)
    assert (told.event_type, told.run_id) == ("run_finish", result.run_id)


async def test_what_the_model_said_needs_no_id_of_the_executor(room):
    class Committing(Deaf):
        async def execute(self, activation, sink):
            run = await activation.control.threads.load_run(activation.run_id)
            step = ThreadCommit(
                thread_id="t", messages=(Message.assistant("thinking"),), run=replace(run, steps=1)
            )
            await activation.control.coordinator.commit(step)
            return done(activation)

    messages = ["hello", Message.assistant("before")]
    await room.acked(await room.mailbox(Committing()).submit_background(RunActivation.new("t", messages)))
    assert await room.texts() == ["hello", "before", "thinking", "ok"]
    assert all(one.id for one in await room.stores.threads.load_messages("t"))


async def test_a_message_that_is_known_is_refused_with_the_run_that_has_it(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    requests = [RunActivation.new("t", [Message.user("x", id=id)]) for id in ("m1", "m2")]
    for request, result in [(one, await mailbox.submit_background(one)) for one in requests]:
        with pytest.raises(errors.DuplicateRecord, match=result.run_id) as refused:
            await mailbox.submit_background(request)
        assert refused.value.details == {"run_id": result.run_id}
    executor.release.set()


async def test_a_submission_that_is_repeated_by_its_run_while_that_is_queued_adds_nothing(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(ask("t", "before"))
    await executor.started.get()

    async def submit(*words):
        return await mailbox.submit_background(ask("t", *words).hinted(run_id="r"))

    first, again = await submit("a", "b"), await submit("a", "b")
    assert (again.dispatch_id, again.run_id, again.joined) == (first.dispatch_id, "r", True)
    await submit("c")
    assert (await submit("c")).joined
    assert (await submit("a", "b")).joined
    executor.release.set()
    await room.acked(first)
    assert said(executor) == [["before"], ["a", "b", "c"]]
    assert len(await room.rows()) == 2


async def test_a_decision_is_taken_just_after_a_message_came_for_the_thread(room):
    ticket = RunWaitingTicket(ticket_id="q", tool_call_id="call", tool_name="shell", reason="May it?")
    asking = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,))
    await room.place(waiting_run("w", "t", waiting=asking))
    executor = Counting()
    mailbox = room.mailbox(executor)
    behind = await mailbox.submit_background(ask("t", "and another thing"))
    yes = ToolCallResume(decision_id="d", result={"approved": True})
    decided = RunActivation.new("t", [], continue_run_id="w", decisions=[("call", yes)])
    await room.acked(await mailbox.submit_background(decided), behind)
    assert [one.decisions for one in executor.activations] == [(("call", yes),), ()]
    assert said(executor) == [[], ["and another thing"]]


# Many in one call.

MANY = [ask(thread, f"{n}").hinted(run_id=f"run-{n}") for n, thread in enumerate(("a", "b", "a", "c"))]
LATER = [request.delivered(delay_ms=10**9) for request in MANY]


async def test_many_begin_also_where_no_rounds_are_made(room):
    executor = Counting()
    accepted = await room.mailbox(executor).submit_many(MANY)
    assert accepted == [(one.thread_id, one.hints.run_id, True) for one in MANY]
    await until(lambda: executor.run_count == 4)


async def test_events_of_the_same_place_are_written_with_many_in_order(room):
    place = room.stores.coordinator.storage_identity
    publisher = StoreEventPublisher(room.stores.events, storage_identity=place)
    await room.mailbox(Noop(), publisher=publisher).submit_many(LATER)
    events = await events_of(room.stores, "a")
    places = [event.sequences[EventScope.thread("a").key] for event in events]
    assert places == list(range(1, len(events) + 1))
    assert [event.event_kind for event in events].count("RunQueued") == 2


async def test_when_the_answer_to_many_is_lost_the_same_call_doubles_nothing(room):
    mailbox = room.mailbox(Noop(), stores=failing_changes(room.stores, after={"submit": [True]}))
    with pytest.raises(errors.StoreUnavailable):
        await mailbox.submit_many(LATER)
    assert await mailbox.submit_many(LATER) == [(one.thread_id, one.hints.run_id, False) for one in LATER]
    assert (await room.stores.dispatches.count_by_status())[QUEUED] == 4
    assert await room.texts("a") == ["0", "2"]


# Wrong submissions.


def to_run(run_id):
    return RunActivation.new("t", ["hi"], continue_run_id=run_id)


def of_messages(*messages):
    return RunActivation(thread_id="t", messages=messages)


no_decision = ToolCallResume(decision_id="d")
WRONG = {
    "no message": (of_messages(), errors.InvalidSubmission),
    "empty message": (of_messages(Message(role=Role.USER)), errors.InvalidSubmission),
    "blank message id": (of_messages(Message.user("hi", id=" ")), errors.InvalidSubmission),
    "have the same id": (of_messages(*[Message.user("a", id="m")] * 2), errors.InvalidSubmission),
    "blank run id": (ask().hinted(run_id=" "), errors.InvalidSubmission),
    "blank agent": (ask(agent_id=""), errors.InvalidSubmission),
    "blank dispatch id": (ask().hinted(dispatch_id=""), errors.InvalidSubmission),
    "blank dedupe key": (ask(dedupe_key=" "), errors.InvalidSubmission),
    "priority": (ask(priority=256), errors.InvalidSubmission),
    "negative delay": (ask(delay_ms=-1), errors.InvalidSubmission),
    "no attempts": (ask(max_attempts=0), errors.InvalidSubmission),
    "negative delay of a retry": (ask(retry_delay_ms=-1), errors.InvalidSubmission),
    "negative longest delay": (ask(max_retry_delay_ms=-1), errors.InvalidSubmission),
    "deadline before all time": (ask(deadline_at=-1), errors.InvalidSubmission),
    "deadline that is no instant": (ask(deadline_at=0), errors.InvalidSubmission),
    "long thread id": (ask("t" * 513), errors.InvalidSubmission),
    "NUL": (ask("t\x00"), errors.InvalidSubmission),
    "half of a character": (ask("t", "\ud800"), errors.InvalidSubmission),
    "half of a character in an id": (ask("t\udfff"), errors.InvalidSubmission),
    "NUL in a message id": (of_messages(Message.user("hi", id="m\x00")), errors.InvalidSubmission),
    "unknown run": (to_run("nobody"), errors.UnknownRun),
    "foreign thread": (to_run("foreign"), errors.ForeignThread),
    "run that is done": (to_run("done"), errors.RunNotOpen),
    "run that runs": (to_run("running"), errors.RunNotOpen),
    "blank decision": (RunActivation.new("t", [], decisions=[("", no_decision)]), errors.InvalidSubmission),
    "message of old": (of_messages(Message.user("again", id="old")), errors.DuplicateRecord),
    "dispatch of old": (ask().hinted(dispatch_id="old"), errors.DuplicateRecord),
}


async def everything(room):
    threads, dispatches = room.stores.threads, room.stores.dispatches
    return (
        await room.rows(),
        await threads.list_runs(RunQuery()),
        await threads.load_messages("t"),
        await threads.load_thread("t"),
        await threads.pending_messages("t"),
        await dispatches.current_dispatch_epoch("t"),
        await dispatches.queued_thread_ids(),
    )


@both_engines
async def test_a_wrong_submission_is_refused_and_changes_nothing(room):
    statuses = {"done": RunStatus.DONE, "running": RunStatus.RUNNING}
    await room.place(*(make_run(name, "t", status) for name, status in statuses.items()))
    await room.place(make_run("foreign", "another", RunStatus.CREATED))
    mailbox = room.mailbox(Counting())
    first = of_messages(Message.user("once", id="old")).hinted(dispatch_id="old")
    await room.acked(await mailbox.submit_background(first))
    await mailbox.settled()
    before, mailbox = await everything(room), room.mailbox(Noop())

    @each_row("wrong", WRONG)
    async def refused(wrong):
        request, kind = WRONG[wrong]
        for submit in (mailbox.submit_background, mailbox.submit, mailbox.submit_live_then_queue):
            with pytest.raises(kind):
                await submit(request)
            assert await everything(room) == before

    await refused()


# Cancel and interrupt.


async def test_cancel_queued_dispatch_works(room):
    mailbox = telling(room, Noop())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "hello")
    assert await mailbox.cancel(queued.dispatch_id) is True
    assert (await room.row(queued)).status is CANCELLED
    await assert_cancelled(room, queued.dispatch)
    event = only(await events_of(room.stores, "t"), "RunCancelled")
    assert (event.payload["dispatch_id"], event.payload["status"]) == (queued.dispatch_id, "cancelled")
    assert event.correlation_id == queued.dispatch_id
    assert operations(mailbox, "mark_run_cancelled") == runs_ended(mailbox, "cancelled") == 1


async def test_interrupt_bumps_dispatch_epoch(room):
    mailbox = room.mailbox(AgentUnknown())
    await mailbox.submit_background(ask())
    assert (await mailbox.interrupt("t")).new_dispatch_epoch == 1
    assert await room.stores.dispatches.current_dispatch_epoch("t") == 1
    assert (await mailbox.interrupt("t")).new_dispatch_epoch == 2


async def test_interrupt_marks_superseded_queued_runs_cancelled(room):
    mailbox = room.mailbox(Noop())
    both = [await enqueue_prepared_dispatch(mailbox, room.stores, "t", word) for word in ("first", "second")]
    done = await mailbox.interrupt("t")
    assert (done.superseded_count, done.active_dispatch) == (2, None)
    assert {row.dispatch_id for row in done.superseded_dispatches} == {one.dispatch_id for one in both}
    for queued in both:
        assert (await room.row(queued)).status is SUPERSEDED
        await assert_cancelled(room, queued.dispatch)
    assert operations(mailbox, "mark_run_superseded") == runs_ended(mailbox, "superseded") == 2


# Newest wins.


async def active_elsewhere(room, mailbox):
    """Return a run that another worker has claimed, which is before a queued one, and all runs."""
    active = (await enqueue_prepared_dispatch(mailbox, room.stores, "t", "active")).dispatch
    claimed = await room.stores.dispatches.claim_dispatch(
        active.dispatch_id, "remote-consumer", lease_ms=30_000
    )
    await enqueue_prepared_dispatch(mailbox, room.stores, "t", "waiting")
    return active, claimed, await everything(room)


async def assert_refused(room, submitting, before):
    """A submission is refused, nothing of it is written, and nothing that was there has changed."""
    with pytest.raises(errors.ActiveRunConflict) as raised:
        await submitting
    assert raised.value.message == ACTIVE_RUN_CONFLICT_MESSAGE
    assert await everything(room) == before


async def test_submit_returns_event_channel(room):
    result, stream = await room.mailbox(AgentUnknown()).submit(ask())
    assert (result.thread_id, result.status) == ("t", RUNNING)
    assert result.dispatch_id
    (finish,) = await read_to_end(stream)
    assert isinstance(finish, RunFinish)
    assert (finish.run_id, finish.termination.type) == (result.run_id, TerminationKind.ERROR)


async def test_foreground_submit_marks_prior_queued_run_cancelled(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    old = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "old")
    result, _ = await mailbox.submit(ask("t", "new"))
    assert (await room.row(old)).status is SUPERSEDED
    await assert_cancelled(room, old.dispatch)
    await mailbox.settled()
    assert (await room.row(result)).status is ACKED
    assert [one.run_id for one in executor.activations] == [result.run_id]


async def test_submit_inline_claim_empty_cancels_precreated_run(room):
    """A foreground submission that cannot be claimed leaves neither a run nor a dispatch."""
    changes = Counter()

    async def another_is_faster(change):
        if change == "submit" and changes["submit"] == 1:
            dispatches = room.stores.dispatches
            await dispatches.enqueue(sample_dispatch("t", "run-other", "other", now=room.clock.now()))
            assert await dispatches.claim_dispatch("other", "remote-consumer", lease_ms=30_000)

    stores = failing_changes(room.stores, counts=changes, begins=another_is_faster)
    with pytest.raises(errors.ActiveRunConflict, match=ACTIVE_RUN_CONFLICT_MESSAGE):
        await room.mailbox(Noop(), stores=stores).submit(ask())
    assert changes["submit"] == 1
    [row] = (await room.rows()).values()
    assert (row.dispatch_id, row.status) == ("other", CLAIMED)
    assert (await room.stores.threads.latest_run("t"), await room.texts()) == (None, [])


async def test_foreground_submit_sends_live_cancel_for_remote_active_dispatch(room):
    mailbox = telling(room, Counting())
    active, claimed, _ = await active_elsewhere(room, mailbox)

    async def released(command):
        await room.stores.dispatches.ack(claimed.claim_proof)
        return True

    async with listening(room.live, live_target(active), released) as heard:
        result, _ = await mailbox.submit(ask("t", "replacement"))
        assert [command.kind for command in heard] == [LiveCommandKind.CANCEL]
    assert result.status is RUNNING
    assert result.dispatch_id != active.dispatch_id
    assert (await room.row(active)).status is ACKED
    interrupted = only(await events_of(room.stores, "t"), "RunInterrupted")
    assert interrupted.payload["dispatch_id"] == interrupted.correlation_id == active.dispatch_id
    await mailbox.settled()
    assert (await room.row(result)).status is ACKED


async def test_foreground_submit_does_not_prepare_replacement_when_remote_cancel_times_out(room):
    executor, timer = Counting(), ManualClock()
    mailbox = telling(room, executor, config=WAITS, timer=timer)
    active, _, before = await active_elsewhere(room, mailbox)
    async with listening(room.live, live_target(active)) as heard:
        await assert_refused(room, as_time_passes(timer, mailbox.submit(ask("t", "replacement"))), before)
        assert [command.kind for command in heard] == [LiveCommandKind.CANCEL]
    assert executor.run_count == 0
    timeout = only(await events_of(room.stores, "t"), "MailboxTimeout")
    assert timeout.payload["reason"] == "remote_cancel_release_wait"


async def test_foreground_submit_does_not_prepare_replacement_when_local_cancel_times_out(room):
    timer = ManualClock()
    mailbox = telling(room, ImmediateLocalCancel(), config=WAITS, timer=timer)
    active, _, before = await active_elsewhere(room, mailbox)
    await assert_refused(room, as_time_passes(timer, mailbox.submit(ask("t", "replacement"))), before)
    told = only(await events_of(room.stores, "t"), "MailboxTimeout").payload
    assert (told["dispatch_id"], told["reason"]) == (active.dispatch_id, "local_cancel_release_wait")
    assert told["timeout_ms"] == WAITS.cancel_wait_ms
    assert "RunInterrupted" not in await kinds_of(room.stores, "t")


async def test_foreground_submit_waits_for_local_cancelled_dispatch_to_release_claim(room):
    timer = ManualClock()
    mailbox, began = room.mailbox(ImmediateLocalCancel(), config=WAITS, timer=timer), timer.now()
    _, _, before = await active_elsewhere(room, mailbox)
    await assert_refused(room, as_time_passes(timer, mailbox.submit(ask("t", "replacement"))), before)
    assert timer.now() - began >= WAITS.cancel_wait_ms


async def test_submit_inline_claim_fails_when_thread_already_claimed(room):
    executor, timer = Blocking(), ManualClock()
    mailbox = room.mailbox(executor, config=PATIENT, timer=timer)
    first, _ = await mailbox.submit(ask("clash", "first"))
    await executor.started.get()
    second, _ = await as_time_passes(timer, mailbox.submit(ask("clash", "second")))
    rows = await room.rows("clash")  # what is soon done may have ended by now
    assert rows[second.dispatch_id].status in (CLAIMED, ACKED)
    assert rows[first.dispatch_id].status is not CLAIMED
    await mailbox.settled()
    await assert_cancelled(room, first)
    assert (await room.run(second)).termination == TerminationReason.natural_end()

    active, _, before = await active_elsewhere(room, mailbox)
    async with listening(room.live, live_target(active), drop):
        await assert_refused(room, mailbox.submit(ask("t", "second")), before)
