"""Wrong submissions get a typed error and change nothing; wrong executors are contained."""

import asyncio
from datetime import timedelta

import pytest

from dispatch_room import (
    AgentRunResult,
    Counting,
    Deaf,
    Noop,
    RunActivation,
    dispatch_in,
    dispatch_that,
    enqueue_prepared_dispatch,
    make_run,
)
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    DuplicateRecord,
    ForeignThread,
    InternalError,
    InvalidRecord,
    InvalidSubmission,
    RunNotOpen,
    UnknownRun,
)
from postroom.contracts.messages import Message, Role
from postroom.contracts.runs import RunStatus
from postroom.contracts.tools import ToolCallResume
from table_rows import each_row

WRONG = {
    "no message": (RunActivation.new("t", []), InvalidSubmission),
    "empty message": (RunActivation(thread_id="t", messages=(Message(role=Role.USER),)), InvalidSubmission),
    "blank message id": (RunActivation.new("t", [Message.user("hi", id=" ")]), InvalidSubmission),
    "an id twice": (
        RunActivation.new("t", [Message.user("a", id="m"), Message.user("b", id="m")]),
        InvalidSubmission,
    ),
    "blank run id": (RunActivation.new("t", ["hi"]).hinted(run_id=" "), InvalidSubmission),
    "blank agent": (RunActivation.new("t", ["hi"], agent_id=""), InvalidSubmission),
    "blank dispatch id": (RunActivation.new("t", ["hi"]).hinted(dispatch_id=""), InvalidSubmission),
    "blank dedupe key": (RunActivation.new("t", ["hi"]).delivered(dedupe_key=" "), InvalidSubmission),
    "priority": (RunActivation.new("t", ["hi"]).delivered(priority=256), InvalidSubmission),
    "negative delay": (RunActivation.new("t", ["hi"]).delivered(delay_ms=-1), InvalidSubmission),
    "no attempts": (RunActivation.new("t", ["hi"]).delivered(max_attempts=0), InvalidSubmission),
    "long thread id": (RunActivation.new("t" * 513, ["hi"]), InvalidSubmission),
    "NUL": (RunActivation.new("t\x00", ["hi"]), InvalidSubmission),
    "half a character": (RunActivation.new("t", ["\ud800"]), InvalidSubmission),
    "half a character in an id": (RunActivation.new("t\udfff", ["hi"]), InvalidSubmission),
    "NUL in a message id": (RunActivation.new("t", [Message.user("hi", id="m\x00")]), InvalidSubmission),
    "unknown run": (RunActivation.new("t", ["hi"], continue_run_id="nobody"), UnknownRun),
    "foreign thread": (RunActivation.new("t", ["hi"], continue_run_id="foreign"), ForeignThread),
    "run that is done": (RunActivation.new("t", ["hi"], continue_run_id="done"), RunNotOpen),
    "run that runs": (RunActivation.new("t", ["hi"], continue_run_id="running"), RunNotOpen),
    "blank decision": (
        RunActivation.new("t", [], decisions=[("", ToolCallResume(decision_id="d"))]),
        InvalidSubmission,
    ),
    "message of old": (RunActivation.new("t", [Message.user("again", id="old")]), DuplicateRecord),
    "dispatch of old": (RunActivation.new("t", ["hi"]).hinted(dispatch_id="old"), DuplicateRecord),
}


@pytest.fixture
async def seeded(room):
    threads = room.stores.threads
    await threads.create_run(make_run("foreign", "another", RunStatus.CREATED))
    await threads.create_run(make_run("done", "t", RunStatus.DONE))
    await threads.create_run(make_run("running", "t", RunStatus.RUNNING))
    mailbox = room.mailbox(Counting())
    request = RunActivation.new("t", [Message.user("once", id="old")]).hinted(dispatch_id="old")
    result = await mailbox.submit_background(request)
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    await mailbox.settled()
    return room


async def everything(room):
    stores = room.stores
    return (
        await stores.dispatches.list_dispatches("t"),
        await stores.dispatches.current_dispatch_epoch("t"),
        await stores.threads.load_messages("t"),
        await stores.threads.load_thread("t"),
        await stores.threads.pending_messages("t"),
        [await stores.threads.load_run(run_id) for run_id in ("done", "running", "foreign")],
        await stores.dispatches.queued_thread_ids(),
    )


@each_row("wrong", WRONG)
@each_row("way", ["submit_background", "submit", "submit_live_then_queue"])
async def test_a_wrong_submission_is_refused_and_changes_nothing(seeded, wrong, way):
    request, kind = WRONG[wrong]
    mailbox = seeded.mailbox(Noop())
    before = await everything(seeded)
    with pytest.raises(kind):
        await getattr(mailbox, way)(request)
    assert await everything(seeded) == before


async def test_a_dispatch_of_what_was_not_prepared_is_refused(memory_room):
    with pytest.raises(InternalError, match="run_id missing"):
        memory_room.mailbox(Noop()).build_dispatch(RunActivation.new("t", ["hi"]))


async def test_a_mailbox_without_a_name_is_refused(memory_room):
    with pytest.raises(InvalidRecord):
        memory_room.mailbox(Noop(), consumer_id=" ")


class Odd(Deaf):
    """Does something odd, then what it is told to."""

    def __init__(self, oddity) -> None:
        super().__init__()
        self._oddity = oddity

    async def execute(self, activation, sink):
        if isinstance(self._oddity, BaseException):
            raise self._oddity
        return self._oddity


RAISED = [
    ValueError("value"),
    KeyboardInterrupt("stop"),
    SystemExit(3),
    asyncio.CancelledError("by itself"),
    BaseException("bare"),
    GeneratorExit(),
    RecursionError("deep"),
    MemoryError(),
    ExceptionGroup("many", [ValueError("one"), TypeError("two")]),
    StopAsyncIteration(),
]


@pytest.mark.parametrize("oddity", RAISED, ids=lambda one: type(one).__name__)
async def test_whatever_an_executor_raises_is_tried_again_and_given_up_in_the_end(room, oddity):
    executor = Odd(oddity)
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]).delivered(max_attempts=2))
    await dispatch_that(room.stores, result.dispatch_id, lambda row: row.attempt_count == 1)
    await mailbox.settled()
    room.clock.advance(timedelta(minutes=1))
    await mailbox.poll()
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert row.last_error
    await mailbox.settled()
    fine = room.mailbox(Counting())
    after = await fine.submit_background(RunActivation.new("t", ["go on"]))
    await dispatch_in(room.stores, after.dispatch_id, RunDispatchStatus.ACKED)


@pytest.mark.parametrize("oddity", [None, "done", 42, {"run_id": "r"}], ids=repr)
async def test_an_executor_that_returns_no_result_is_given_up_at_once(room, oddity):
    mailbox = room.mailbox(Odd(oddity))
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert type(oddity).__name__ in row.last_error
    await mailbox.settled()
    assert (await room.stores.threads.load_run(result.run_id)).status is RunStatus.DONE


async def test_half_characters_of_an_executor_are_stored_as_question_marks(room):
    class Half(Deaf):
        async def execute(self, activation, sink):
            if activation.thread_id == "raises":
                raise OSError("no file \udcff")
            return AgentRunResult(run_id=activation.run_id, response="caf\ud800")

    mailbox = room.mailbox(Half())
    said = await mailbox.submit_background(RunActivation.new("says", ["go"]))
    assert (await dispatch_in(room.stores, said.dispatch_id, RunDispatchStatus.ACKED)).run_response == "caf?"
    raised = await mailbox.submit_background(RunActivation.new("raises", ["go"]).delivered(max_attempts=1))
    row = await dispatch_in(room.stores, raised.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert row.last_error == "OSError: no file ?"


async def test_a_failure_of_the_mailbox_itself_puts_the_dispatch_back(room):
    """Whatever nobody foresaw while a run is written down: an attempt counts, nothing is lost."""

    class Odd(Counting):
        def commits_steps(self, thread_id):
            raise ZeroDivisionError("a bug in an executor's other methods")

    mailbox = room.mailbox(Odd())
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]).delivered(max_attempts=2))
    await dispatch_that(room.stores, result.dispatch_id, lambda row: row.attempt_count == 1)
    await mailbox.settled()
    room.clock.advance(timedelta(minutes=1))
    await mailbox.poll()
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert "ZeroDivisionError" in row.last_error
    await mailbox.settled()
    assert (await room.stores.threads.load_run(result.run_id)).status is RunStatus.DONE


async def test_an_executor_that_is_no_coroutine_is_contained(room):
    class Plain(Deaf):
        def run(self, activation, sink):  # type: ignore[override]
            raise TypeError("not even a coroutine")

    mailbox = room.mailbox(Plain())
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]).delivered(max_attempts=1))
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert "not even a coroutine" in row.last_error


async def test_a_row_of_a_cancelled_dispatch_does_not_end_a_run_that_another_delivers(room):
    """Reconciliation looks at whose the run is by now."""
    mailbox = room.mailbox(Noop())
    old = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "old")
    await room.stores.dispatches.cancel(old.dispatch_id)
    from postroom.contracts.records import replace
    from postroom.contracts.run_stores import ThreadCommit

    run = await room.stores.threads.load_run(old.run_id)
    moved = replace(run, dispatch_id="another")
    await room.stores.coordinator.commit(ThreadCommit(thread_id="t", run=moved))
    await mailbox.run_sweep()
    assert (await room.stores.threads.load_run(old.run_id)).status is RunStatus.CREATED
    assert await room.stores.dispatches.unreconciled_dispatches() == ()
