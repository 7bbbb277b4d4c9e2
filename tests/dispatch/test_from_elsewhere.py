"""What one process asks of a run that another has at work: to end, or to go on with a decision; nothing of it is lost.

The executor is a program's own: no live channel leads to it. Hints are lost in none of these, and needed by none.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from conformance.run_backends import Place
from dispatch.conftest import Room
from dispatch_room import Deaf, dispatch_in, done, eventually
from log_lines import capture_logs
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import ActiveRunConflict, Overloaded, RunNotOpen, StaleDecision
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.live import LiveCommandKind, LiveRunCommand
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox, MailboxSubmitResult
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from store_kinds import SCHEMA

SOON = MailboxConfig(
    poll_interval=timedelta(milliseconds=5),
    default_retry_delay_ms=0,
    lease_ms=600_000_000,
    cancel_wait_ms=300_000_000,
)
CANCELLED = (RunStatus.DONE, TerminationKind.CANCELLED)


class Working(Deaf):
    """Works until it is let go on; then it fails, asks `c1`, or ends, as it is told."""

    def __init__(self, *then: str, takes: bool = False) -> None:
        super().__init__()
        self.begun: asyncio.Queue[RunActivation] = asyncio.Queue()
        self.going = asyncio.Event()
        self.then = list(then)
        self.takes = takes
        self.taken: list[tuple[str, str]] = []

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        self.begun.put_nowait(activation)
        then = self.then.pop(0) if self.then else "end"
        if then != "end":
            await self.going.wait()
        if then == "fail":
            raise Overloaded("busy")
        if then == "ask":
            return asking(activation)
        return done(activation)

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        if self.takes:
            self.taken.append((tool_call_id, resume.decision_id))
        return self.takes


def asking(activation: RunActivation) -> AgentRunResult:
    ticket = RunWaitingTicket(ticket_id="c1", tool_call_id="c1", reason="May I?")
    return AgentRunResult(
        run_id=activation.run_id or "",
        termination=TerminationReason.suspended(),
        waiting=RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,)),
    )


def yes(decision_id: str = "d1", call: str = "c1") -> tuple[str, ToolCallResume]:
    return call, ToolCallResume(decision_id=decision_id, result={"approved": True})


@pytest_asyncio.fixture
async def elsewhere(room: Room, run_place: Place, clock: ManualClock) -> AsyncIterator[RunStores]:
    """The stores of another process, where several may share a database; else the same ones."""
    if run_place.backend != "postgres":
        yield room.stores
        return
    opened = await asyncio.to_thread(PostgresStore.open, run_place.dsn, schema=SCHEMA, clock=clock)
    yield opened.runs
    await room.close()
    await asyncio.to_thread(opened.close)


class Two:
    """Two mailboxes of one database, of which the first has a run at work."""

    def __init__(self, room: Room, elsewhere: RunStores, executor: Working) -> None:
        self.room, self.executor = room, executor
        self.owner: Mailbox = room.mailbox(executor, live=None, config=SOON)
        self.other: Mailbox = room.mailbox(
            Deaf(), stores=elsewhere, live=None, config=SOON, consumer_id="elsewhere"
        )

    async def at_work(self) -> MailboxSubmitResult:
        submitted = await self.owner.submit_background(RunActivation.new("t", ["go"]))
        await asyncio.wait_for(self.executor.begun.get(), 30)
        return submitted

    async def decide(self, run_id: str, *decisions: tuple[str, ToolCallResume]) -> MailboxSubmitResult:
        request = RunActivation.new("t", [], continue_run_id=run_id, decisions=decisions)
        return await self.other.submit_background(request)

    async def run(self, run_id: str) -> RunRecord:
        found = await self.room.stores.threads.load_run(run_id)
        assert found is not None
        return found

    async def waits(self, run_id: str) -> None:
        async def look() -> bool | None:
            return (await self.run(run_id)).status is RunStatus.WAITING or None

        await eventually(look)

    async def ended(self, run_id: str) -> tuple[RunStatus, TerminationKind | None]:
        async def look() -> RunRecord | None:
            run = await self.run(run_id)
            return run if run.status is RunStatus.DONE else None

        run = await eventually(look)
        return run.status, run.termination.type if run.termination else None


@pytest.mark.parametrize("by", ["dispatch_id", "run_id", "thread_id"])
async def test_a_run_at_work_elsewhere_is_cancelled_by_any_of_its_ids(
    room: Room, elsewhere: RunStores, by: str
) -> None:
    two = Two(room, elsewhere, Working("never"))
    work = await two.at_work()
    assert await two.other.cancel(getattr(work, by))
    assert await two.ended(work.run_id) == CANCELLED
    assert not await two.other.cancel(work.run_id)


async def test_a_foreground_submission_makes_a_run_elsewhere_give_way(
    room: Room, elsewhere: RunStores
) -> None:
    two = Two(room, elsewhere, Working("never"))
    work = await two.at_work()
    submitted = asyncio.ensure_future(two.other.submit(RunActivation.new("t", ["now"])))

    async def time_passes() -> bool | None:
        room.clock.advance(timedelta(milliseconds=5))
        return submitted.done() or None

    await eventually(time_passes)
    result, _ = await submitted
    assert result.run_id != work.run_id
    assert await two.ended(work.run_id) == CANCELLED


class Stubborn(Working):
    """Stops only after it is let go on, and then works to its end."""

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        self.begun.put_nowait(activation)
        try:
            await asyncio.Event().wait() if self.then.pop(0) == "stop" else None
        except asyncio.CancelledError:
            self.then.append("stopped")
            await self.going.wait()
            raise
        return done(activation)


async def refused_elsewhere(room: Room, two: "Two") -> None:
    """Submit at once from elsewhere until the submission is refused; the run is told meanwhile."""
    submitted = asyncio.ensure_future(two.other.submit(RunActivation.new("t", ["now"])))

    async def is_told() -> bool | None:
        return "stopped" in two.executor.then or None

    await eventually(is_told)

    async def time_passes() -> bool | None:
        room.clock.advance(timedelta(milliseconds=20))
        return submitted.done() or None

    await eventually(time_passes)
    with pytest.raises(ActiveRunConflict):
        await submitted


async def test_a_run_that_stopped_for_a_refused_submission_from_elsewhere_is_queued_again(
    room: Room, elsewhere: RunStores
) -> None:
    short = replace(SOON, cancel_wait_ms=200, cancel_poll_ms=20)
    two = Two(room, elsewhere, Stubborn("stop", "end"))
    two.other = room.mailbox(Deaf(), stores=elsewhere, live=None, config=short, consumer_id="refused")
    work = await two.at_work()
    await refused_elsewhere(room, two)
    two.executor.going.set()
    assert await two.ended(work.run_id) == (RunStatus.DONE, TerminationKind.NATURAL_END)
    again = await two.executor.begun.get()
    assert (again.run_id, again.attempt) == (work.run_id, 1)
    row = await room.stores.dispatches.load_dispatch(work.dispatch_id)
    assert row is not None
    assert (row.attempt_count, row.status) == (0, RunDispatchStatus.ACKED)
    assert [one.run_id for one in await room.stores.threads.list_runs(RunQuery(thread_id="t"))] == [
        work.run_id
    ]


async def test_a_person_s_cancel_holds_though_a_submission_was_refused(
    room: Room, elsewhere: RunStores
) -> None:
    short = replace(SOON, cancel_wait_ms=200, cancel_poll_ms=20)
    two = Two(room, elsewhere, Stubborn("stop", "end"))
    two.other = room.mailbox(Deaf(), stores=elsewhere, live=None, config=short, consumer_id="refused")
    work = await two.at_work()
    await refused_elsewhere(room, two)
    assert await two.other.cancel(work.run_id)
    two.executor.going.set()
    assert await two.ended(work.run_id) == CANCELLED


LEAVES = pytest.mark.parametrize("leaves", ["fails", "drains", "is gone"])
DEAF = replace(SOON, poll_interval=timedelta(hours=1))


class Leaving:
    """A process that has a run at work, and leaves it before it has heard what is asked of that."""

    def __init__(self, room: Room, elsewhere: RunStores, leaves: str) -> None:
        self.room, self.leaves = room, leaves
        self.executor = Working("fail")
        self.owner = room.mailbox(self.executor, live=None, config=DEAF)
        self.next = Working()
        self.other = room.mailbox(
            self.next, stores=elsewhere, live=None, config=SOON, consumer_id="elsewhere"
        )

    async def at_work(self) -> MailboxSubmitResult:
        request = RunActivation.new("t", ["go"])
        if self.leaves != "is gone":
            submitted = await self.owner.submit_background(request)
            await asyncio.wait_for(self.executor.begun.get(), 30)
            return submitted
        submitted = await self.owner.submit_background(request.delivered(delay_ms=60_000))
        owned = await self.room.stores.dispatches.claim_dispatch(submitted.dispatch_id, "gone", lease_ms=1)
        assert owned is not None
        return submitted

    async def ask(self, dispatch_id: str, command: LiveRunCommand) -> None:
        """Keep what is asked, without a hint."""
        row = await self.room.stores.dispatches.load_dispatch(dispatch_id)
        assert row is not None
        unheard = replace(row, claimed_by="nobody")
        await self.room.stores.store.write(lambda tx: tx.runs.dispatches.put_command(unheard, command))

    async def leave(self) -> None:
        if self.leaves == "fails":
            self.executor.going.set()
            await self.owner.settled()
        elif self.leaves == "drains":
            await self.owner.drain(timedelta(0))
        self.room.clock.advance(timedelta(days=30))
        await self.other.run_sweep()
        await self.other.poll()
        await self.other.settled()


@LEAVES
async def test_a_cancelled_run_does_not_come_again_when_its_process_leaves_it(
    room: Room, elsewhere: RunStores, leaves: str
) -> None:
    left = Leaving(room, elsewhere, leaves)
    work = await left.at_work()
    await left.ask(work.dispatch_id, LiveRunCommand(kind=LiveCommandKind.CANCEL))
    await left.leave()
    await dispatch_in(room.stores, work.dispatch_id, RunDispatchStatus.CANCELLED)
    run = await room.stores.threads.load_run(work.run_id)
    assert run is not None
    assert run.termination is not None
    assert (run.status, run.termination.type) == CANCELLED
    assert left.next.run_count == 0


@LEAVES
async def test_a_decision_is_known_to_the_next_attempt(room: Room, elsewhere: RunStores, leaves: str) -> None:
    left = Leaving(room, elsewhere, leaves)
    work = await left.at_work()
    await left.ask(work.dispatch_id, LiveRunCommand(kind=LiveCommandKind.DECISION, decisions=(yes(),)))
    await left.leave()
    await left.owner.settled()
    begun = [*left.executor.activations, *left.next.activations][-1]
    assert (begun.run_id, begun.decisions) == (work.run_id, (yes(),))


async def test_a_cancelled_run_that_comes_to_ask_is_over(room: Room, elsewhere: RunStores) -> None:
    two = Two(room, elsewhere, Working("ask"))
    two.executor.cancel = lambda id: True  # it is told, and asks all the same
    work = await two.at_work()
    assert await two.other.cancel(work.run_id)
    two.executor.going.set()
    assert await two.ended(work.run_id) == CANCELLED


async def test_a_decision_reaches_the_executor_that_takes_it(room: Room, elsewhere: RunStores) -> None:
    two = Two(room, elsewhere, Working("work", takes=True))
    work = await two.at_work()
    kept = await two.decide(work.run_id, yes())
    assert (kept.run_id, kept.dispatch_id, kept.status) == (work.run_id, work.dispatch_id, "running")
    assert await eventually(lambda: found(two.executor.taken)) == [("c1", "d1")]
    two.executor.going.set()
    assert await two.ended(work.run_id) == (RunStatus.DONE, TerminationKind.NATURAL_END)
    assert two.executor.taken == [("c1", "d1")]


async def found(things: list) -> list | None:
    return things or None


async def test_a_decision_that_came_early_answers_the_question_as_it_is_asked(
    room: Room, elsewhere: RunStores
) -> None:
    two = Two(room, elsewhere, Working("ask"))
    work = await two.at_work()
    await two.decide(work.run_id, yes(), yes("d9", "c9"))
    with capture_logs() as lines:
        two.executor.going.set()
        again = await asyncio.wait_for(two.executor.begun.get(), 30)
    assert (again.run_id, again.decisions) == (work.run_id, (yes(),))
    [dropped] = [line for line in lines if line["event"] == "decisions.not_asked_for"]
    assert (dropped["run_id"], list(dropped["calls"])) == (work.run_id, ["c9"])
    assert await two.ended(work.run_id) == (RunStatus.DONE, TerminationKind.NATURAL_END)
    [told] = (await two.run(work.run_id)).answered
    assert (told.ticket.tool_call_id, told.decision.decision_id) == ("c1", "d1")


async def test_of_two_decisions_about_one_call_the_first_counts(room: Room, elsewhere: RunStores) -> None:
    two = Two(room, elsewhere, Working("ask", "work"))
    work = await two.at_work()
    for _ in range(2):
        await two.decide(work.run_id, yes())
    with pytest.raises(StaleDecision, match="answered already"):
        await two.decide(work.run_id, yes("d2"))
    two.executor.going.set()
    assert (await asyncio.wait_for(two.executor.begun.get(), 30)).decisions == (yes(),)
    with pytest.raises((StaleDecision, RunNotOpen)):
        await two.decide(work.run_id, yes("d3"))
    await two.ended(work.run_id)


async def test_a_decision_that_brings_messages_is_refused_while_its_run_is_active(
    room: Room, elsewhere: RunStores
) -> None:
    two = Two(room, elsewhere, Working("ask"))
    work = await two.at_work()
    request = RunActivation.new("t", ["and this"], continue_run_id=work.run_id, decisions=(yes(),))
    with pytest.raises(RunNotOpen):
        await two.other.submit_background(request)
    two.executor.going.set()
    await two.waits(work.run_id)
    assert not (await two.run(work.run_id)).answered, "the refused decision was not kept"


async def test_a_decision_is_sent_to_a_run_at_work_elsewhere(room: Room, elsewhere: RunStores) -> None:
    two = Two(room, elsewhere, Working("ask"))
    work = await two.at_work()
    assert await two.other.send_decision_live(work.run_id, *yes())
    assert not await two.other.send_decision_live(work.run_id, *yes("d2"))
    two.executor.going.set()
    assert (await asyncio.wait_for(two.executor.begun.get(), 30)).decisions == (yes(),)
    await two.ended(work.run_id)
    assert not await two.other.send_decision_live(work.run_id, *yes("d4"))
