"""Cancels by any id at every moment, and commands to a run in another process: none is lost.

The executors elsewhere are a program's own: no live channel leads to them. Hints are lost in none of these, and
needed by none.
"""

import asyncio
from datetime import timedelta

import pytest
import pytest_asyncio

from dispatch.conftest import both_engines
from dispatch_room import (
    ACKED,
    CANCELLED,
    Blocking,
    Deaf,
    Raising,
    RunActivation,
    ask,
    done,
    eventually,
)
from log_lines import capture_logs
from postroom.contracts import errors
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.live import LiveCommandKind, LiveRunCommand
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import MailboxConfig
from postroom.embedded.effects import Ends
from postroom.stores.postgres.store import PostgresStore
from store_kinds import SCHEMA

IDS = ("dispatch_id", "run_id", "thread_id")
NATURAL = TerminationKind.NATURAL_END
SOON = MailboxConfig(
    poll_interval=timedelta(milliseconds=5),
    default_retry_delay_ms=0,
    lease_ms=600_000_000,
    cancel_wait_ms=300_000_000,
)


async def ended(room, of):
    """Return how a run ended, as soon as it has."""

    async def look():
        run = await room.run(of)
        return run.termination.type if run.status is RunStatus.DONE else None

    return await eventually(look)


class Working(Deaf):
    """Works until it is released; then it fails, asks `c1`, or ends, as the test says."""

    def __init__(self, *then, takes=False):
        super().__init__()
        self.begun, self.going = asyncio.Queue(), asyncio.Event()
        self.then, self.takes, self.taken = list(then), takes, []

    async def execute(self, activation, sink):
        self.begun.put_nowait(activation)
        then = self.then.pop(0) if self.then else "end"
        if then != "end":
            await self.going.wait()
        if then == "fail":
            raise errors.Overloaded("busy")
        return asking(activation) if then == "ask" else done(activation)

    def send_decision(self, id, tool_call_id, resume):
        if self.takes:
            self.taken.append((tool_call_id, resume.decision_id))
        return self.takes


def asking(activation):
    ticket = RunWaitingTicket(ticket_id="c1", tool_call_id="c1", reason="May I?")
    waiting = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,))
    suspended = TerminationReason.suspended()
    return AgentRunResult(run_id=activation.run_id, termination=suspended, waiting=waiting)


def yes(decision_id="d1", call="c1"):
    return call, ToolCallResume(decision_id=decision_id, result={"approved": True})


# Here.


@pytest.mark.parametrize("state", ["queued", "to be tried again", "asking"])
async def test_what_does_not_execute_is_cancelled_by_any_of_its_ids_and_never_executes(room, state):
    executor = (
        Working("ask") if state == "asking" else Raising(errors.Overloaded("busy", retry_after_ms=60_000))
    )
    getattr(executor, "going", asyncio.Event()).set()
    mailbox = room.mailbox(executor)
    for thread, by in enumerate(IDS):
        delay = {"delay_ms": 60_000} if state == "queued" else {}
        result = await mailbox.submit_background(ask(f"t{thread}", **delay))
        await mailbox.settled()
        if state == "asking":
            assert (await room.run(result)).status is RunStatus.WAITING
            executor.then.append("ask")
        before = executor.run_count
        assert await mailbox.cancel(getattr(result, by))
        assert (await room.row(result)).status is (ACKED if state == "asking" else CANCELLED)
        assert await ended(room, result) is TerminationKind.CANCELLED
        room.passes(hours=1)
        assert await mailbox.poll() == 0
        assert executor.run_count == before == (0 if state == "queued" else thread + 1)
        assert not await mailbox.cancel(getattr(result, by))


async def test_what_is_queued_behind_another_run_is_cancelled_and_that_one_goes_on(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    first, *behind = [await mailbox.submit_background(ask()) for _ in range(3)]
    await executor.started.get()
    for result, by in zip(behind, IDS, strict=False):
        assert await mailbox.cancel(getattr(result, by))
        assert await ended(room, result) is TerminationKind.CANCELLED
    executor.release.set()
    await mailbox.settled()
    assert (await ended(room, first), executor.run_count) == (NATURAL, 1)


class Obeying(Blocking):
    """Ends at the command of the test, with a failure that allows a retry."""

    def cancel(self, id):
        self.release.set()
        return True

    async def execute(self, activation, sink):
        await super().execute(activation, sink)
        raise errors.Overloaded("ended in the middle of a call")


async def test_a_run_that_fails_as_it_is_cancelled_is_not_tried_again(room):
    executor = Obeying()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(ask())
    await executor.started.get()
    assert await mailbox.cancel(result.run_id)
    await mailbox.settled()
    assert (await ended(room, result), executor.run_count) == (TerminationKind.CANCELLED, 1)


async def test_a_run_that_is_cancelled_while_its_failure_is_written_does_not_come_again(room):
    class CancellingEffects(Ends):
        def put_back(self, tx, row, *, is_stop):
            mailbox.workers.stop(row.run_id)

    executor, effects = Raising(errors.Overloaded("busy", retry_after_ms=60_000)), CancellingEffects()
    mailbox = effects.mailbox = room.mailbox(executor, effects=effects)
    result = await mailbox.submit_background(ask())
    await mailbox.settled()
    await room.comes_to(CANCELLED, result)
    assert await ended(room, result) is TerminationKind.CANCELLED
    room.passes(hours=1)
    assert (await mailbox.poll(), executor.run_count) == (0, 1)


# Elsewhere.


@pytest_asyncio.fixture
async def elsewhere(room, run_place, clock):
    """The stores of another process, where several may share a database; else the same ones."""
    if run_place.backend != "postgres":
        yield room.stores
        return
    opened = await asyncio.to_thread(PostgresStore.open, run_place.dsn, schema=SCHEMA, clock=clock)
    yield opened.runs
    await room.close()
    await asyncio.to_thread(opened.close)


class Two:
    """Two mailboxes of one database, of which the first has an active run."""

    def __init__(self, room, stores, executor, config=SOON):
        self.room, self.executor = room, executor
        self.owner = room.mailbox(executor, live=None, config=SOON)
        self.other = room.mailbox(Deaf(), stores=stores, live=None, config=config, consumer_id="elsewhere")

    async def at_work(self):
        submitted = await self.owner.submit_background(ask())
        await asyncio.wait_for(self.executor.begun.get(), 30)
        return submitted

    async def decide(self, of, *decisions, says=()):
        request = RunActivation.new("t", says, continue_run_id=of.run_id, decisions=decisions)
        return await self.other.submit_background(request)

    async def goes_on(self):
        """Release the run; return the activation with which it starts again."""
        self.executor.going.set()
        return await asyncio.wait_for(self.executor.begun.get(), 30)

    async def submits_in_front(self, is_told=lambda: True):
        """Submit at once from another process; the time passes when the active run gets the command. Return the result, or
        the error.
        """
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:

            async def submit():
                try:
                    return (await self.other.submit(ask("t", "now")))[0]
                except errors.ActiveRunConflict as error:
                    return error

            submitted = group.create_task(submit())

            async def time_passes():
                if is_told():
                    self.room.passes(milliseconds=20)
                return submitted.done()

            await eventually(time_passes)
        return submitted.result()


@both_engines
async def test_a_run_at_work_elsewhere_is_cancelled_by_any_of_its_ids(room, elsewhere):
    two = Two(room, elsewhere, Working(*["never"] * 3))
    for by in IDS:
        work = await two.at_work()
        assert await two.other.cancel(getattr(work, by))
        assert await ended(room, work) is TerminationKind.CANCELLED
        assert not await two.other.cancel(work.run_id)
        await two.owner.settled()


@both_engines
async def test_a_foreground_submission_makes_a_run_elsewhere_give_way(room, elsewhere):
    two = Two(room, elsewhere, Working("never"))
    work = await two.at_work()
    assert (await two.submits_in_front()).run_id != work.run_id
    assert await ended(room, work) is TerminationKind.CANCELLED


class Stubborn(Working):
    """Stops only after it is let go on, and then works to its end."""

    is_stopped = False

    async def execute(self, activation, sink):
        self.begun.put_nowait(activation)
        if not self.is_stopped:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.is_stopped = True
                await self.going.wait()
                raise
        return done(activation)


@both_engines
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_run_that_stopped_for_a_refused_submission_is_queued_again_unless_it_was_cancelled(
    room, elsewhere, is_cancelled
):
    executor, short = Stubborn(), replace(SOON, cancel_wait_ms=200, cancel_poll_ms=20)
    two = Two(room, elsewhere, executor, config=short)
    work = await two.at_work()
    assert isinstance(await two.submits_in_front(lambda: executor.is_stopped), errors.ActiveRunConflict)
    if is_cancelled:
        assert await two.other.cancel(work.run_id)
    executor.going.set()
    await two.owner.settled()
    room.passes(seconds=1)  # the time for which the submission might still have taken its place
    await two.owner.poll()
    assert await ended(room, work) is (TerminationKind.CANCELLED if is_cancelled else NATURAL)
    assert executor.run_count == (1 if is_cancelled else 2)
    assert {(one.run_id, one.attempt) for one in executor.activations} == {(work.run_id, 1)}
    assert (await room.row(work)).attempt_count == 0
    runs = await room.stores.threads.list_runs(RunQuery(thread_id="t"))
    assert [one.run_id for one in runs] == [work.run_id]


class Leaving:
    """A process with an active run that it abandons before it receives a command for it."""

    def __init__(self, room, stores, leaves):
        self.room, self.leaves = room, leaves
        self.executor, self.next = Working("fail"), Working()
        deaf = replace(SOON, poll_interval=timedelta(hours=1))
        self.owner = room.mailbox(self.executor, live=None, config=deaf)
        self.other = room.mailbox(self.next, stores=stores, live=None, config=SOON, consumer_id="elsewhere")

    async def left_with(self, command):
        """Store a command for an active run, without a hint, and abandon the run; return its submission."""
        dispatches = self.room.stores.dispatches
        if self.leaves == "is gone":
            work = await self.owner.submit_background(ask(delay_ms=60_000))
            assert await dispatches.claim_dispatch(work.dispatch_id, "gone", lease_ms=1)
        else:
            work = await self.owner.submit_background(ask())
            await asyncio.wait_for(self.executor.begun.get(), 30)
        unheard = replace(await self.room.row(work), claimed_by="nobody")
        await self.room.stores.store.write(lambda tx: tx.runs.dispatches.put_command(unheard, command))
        if self.leaves == "fails":
            self.executor.going.set()
            await self.owner.settled()
        elif self.leaves == "drains":
            await self.owner.drain(timedelta(0))
        self.room.passes(days=30)
        await self.other.run_sweep()
        await self.other.poll()
        for mailbox in (self.other, self.owner):
            await mailbox.settled()
        return work


LEAVES = pytest.mark.parametrize("leaves", ["fails", "drains", "is gone"])


@LEAVES
async def test_a_decision_is_known_to_the_next_attempt(room, elsewhere, leaves):
    left = Leaving(room, elsewhere, leaves)
    work = await left.left_with(LiveRunCommand(kind=LiveCommandKind.DECISION, decisions=(yes(),)))
    begun = [*left.executor.activations, *left.next.activations][-1]
    assert (begun.run_id, begun.decisions) == (work.run_id, (yes(),))


@both_engines
async def test_a_cancelled_run_that_comes_to_ask_is_over(room, elsewhere):
    two = Two(room, elsewhere, Working("ask"))
    two.executor.cancel = lambda id: True  # it is told, and asks all the same
    work = await two.at_work()
    assert await two.other.cancel(work.run_id)
    two.executor.going.set()
    assert await ended(room, work) is TerminationKind.CANCELLED


@both_engines
async def test_a_decision_reaches_the_executor_that_takes_it(room, elsewhere):
    two = Two(room, elsewhere, Working("work", takes=True))
    work = await two.at_work()
    kept = await two.decide(work, yes())
    assert (kept.run_id, kept.dispatch_id, kept.status) == (work.run_id, work.dispatch_id, "running")

    async def taken():
        return two.executor.taken

    await eventually(taken)
    two.executor.going.set()
    assert await ended(room, work) is NATURAL
    assert two.executor.taken == [("c1", "d1")]


@both_engines
async def test_a_decision_that_came_early_answers_the_question_as_it_is_asked(room, elsewhere):
    two = Two(room, elsewhere, Working("ask"))
    work = await two.at_work()
    await two.decide(work, yes(), yes("d9", "c9"))
    with capture_logs() as lines:
        again = await two.goes_on()
    assert (again.run_id, again.decisions) == (work.run_id, (yes(),))
    [dropped] = [line for line in lines if line["event"] == "decisions.not_asked_for"]
    assert (dropped["run_id"], list(dropped["calls"])) == (work.run_id, ["c9"])
    assert await ended(room, work) is NATURAL
    [told] = (await room.run(work)).answered
    assert (told.ticket.tool_call_id, told.decision.decision_id) == ("c1", "d1")


@both_engines
async def test_of_two_decisions_about_one_call_the_first_counts_however_it_is_sent(room, elsewhere):
    two = Two(room, elsewhere, Working("ask", "work"))
    work = await two.at_work()
    with pytest.raises(errors.RunNotOpen):
        await two.decide(work, yes(), says=["and this"])
    for _ in range(2):
        await two.decide(work, yes())
    with pytest.raises(errors.StaleDecision, match="already been answered"):
        await two.decide(work, yes("d2"))
    assert (await two.goes_on()).decisions == (yes(),)
    with pytest.raises((errors.StaleDecision, errors.RunNotOpen)):
        await two.decide(work, yes("d3"))
    await ended(room, work)


@both_engines
async def test_a_decision_is_sent_to_a_run_at_work_elsewhere(room, elsewhere):
    two = Two(room, elsewhere, Working("ask"))
    work = await two.at_work()
    assert await two.other.send_decision_live(work.run_id, *yes())
    assert not await two.other.send_decision_live(work.run_id, *yes("d2"))
    assert (await two.goes_on()).decisions == (yes(),)
    await ended(room, work)
    assert not await two.other.send_decision_live(work.run_id, *yes("d4"))
