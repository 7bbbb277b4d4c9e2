"""Executors that play a part, and repeated actions of tests of the mailbox. For tests only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

from machine import PATIENCE
from patient_loop import a_moment
from postroom.concurrency import Tasks
from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink, RunFinish, RunStart, TextDelta, ToolCallReady
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import AgentNotFound, RateLimited, StoreUnavailable, Unauthorized
from postroom.contracts.events import CanonicalEvent, EventScope
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.live import LiveChannels, LiveRunCommand, LiveRunTarget
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.registry import RegistrySet
from postroom.contracts.run_stores import CommitCoordinator, ThreadCommit
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.completion import Claimed, Job, WorkerStatus
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.sinks import ReconnectableEventSink
from postroom.dispatch.submission import Prepared
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

T = TypeVar("T")
Answer = Callable[[LiveRunCommand], Awaitable[bool]]
QUEUED, CLAIMED, ACKED = RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED, RunDispatchStatus.ACKED
CANCELLED, SUPERSEDED = RunDispatchStatus.CANCELLED, RunDispatchStatus.SUPERSEDED
DEAD = RunDispatchStatus.DEAD_LETTER
ENDED_BY_CANCEL = (RunStatus.DONE, TerminationReason.cancelled())


class Longest(Random):
    """Draws the longest delay each time."""

    def randint(self, a: int, b: int) -> int:
        return b


def ask(thread_id: str = "t", *words: str, agent_id: str | None = None, **delivery: Any) -> RunActivation:
    """Return a submission to a thread that says these words, or else "go"."""
    request = RunActivation.new(thread_id, words or ["go"], agent_id=agent_id)
    return request.delivered(**delivery) if delivery else request


def said(executor: "Deaf") -> list[list[str]]:
    """Return what each execution was asked."""
    return [[message.text() for message in one.messages] for one in executor.activations]


def asked_for(*executors: "Deaf") -> list[str | None]:
    """Return the dispatches of all executions."""
    return [one.trace.dispatch_id for executor in executors for one in executor.activations]


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def done(activation: RunActivation, response: str = "ok") -> AgentRunResult:
    """Return that a run came to its natural end."""
    return AgentRunResult(
        run_id=activation.run_id or "",
        response=response,
        termination=TerminationReason.natural_end(),
        steps=1,
    )


class Deaf(RunDispatchExecutor):
    """Takes no commands; subclasses define the work."""

    def __init__(self) -> None:
        self.activations: list[RunActivation] = []

    @property
    def run_count(self) -> int:
        return len(self.activations)

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        self.activations.append(activation)
        return await self.execute(activation, sink)

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        return done(activation)

    def recovery(self, activation: RunActivation) -> Recovery:
        return Recovery.RESUME

    def live_registry(self) -> RegistrySet | None:
        return RegistrySet()


class Counting(Deaf):
    """Ends every run well and remembers what it was asked."""


class Noop(Deaf):
    """Must not be asked to run anything."""

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        raise AssertionError(f"nothing was to be executed, and {activation.run_id} was")


class WakeRecording(Noop):
    """Reports that it reads waiting messages."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes: list[str] = []

    def wake_pending_boundary(self, id: str) -> bool:
        self.wakes.append(id)
        return True


class ImmediateLocalCancel(Noop):
    """Says at once that what it ran has ended."""

    def cancel(self, id: str) -> bool:
        return True

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        return True


class Raising(Deaf):
    """Fails with the given errors, one after another; the last repeatedly."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__()
        self.errors = list(errors)

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        raise self.errors[min(self.run_count, len(self.errors)) - 1]


def missing_agent() -> Raising:
    return Raising(AgentNotFound("agent 'synthetic-missing-agent' is not registered"))


def unauthorized() -> Raising:
    return Raising(Unauthorized("403 pre_consume_token_quota_failed"))


def rate_limited() -> Raising:
    return Raising(RateLimited("429 too many requests"))


def storage_failing() -> Raising:
    return Raising(StoreUnavailable("synthetic transient storage failure"))


class AgentUnknown(Deaf):
    """Knows no agent, as a runtime without a registry."""

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        raise AgentNotFound(f"agent {activation.agent_id!r} is not registered", value=activation.agent_id)


class Blocking(Deaf):
    """Holds its first run until it is released; reports each start."""

    def __init__(self) -> None:
        super().__init__()
        self.started: asyncio.Queue[RunActivation] = asyncio.Queue()
        self.release = asyncio.Event()

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        ordinal = self.run_count
        self.started.put_nowait(activation)
        if ordinal == 1:
            await self.release.wait()
        return done(activation)


class CommittingEmitting(Deaf):
    """Tells of a start, a delta, a tool call and its end, then commits through the coordinator it is given."""

    def __init__(self, coordinator: CommitCoordinator) -> None:
        super().__init__()
        self._coordinator = coordinator

    def commit_coordinator(self) -> CommitCoordinator | None:
        return self._coordinator

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        run_id = activation.run_id or ""
        await sink.emit(RunStart(thread_id=activation.thread_id, run_id=run_id))
        await sink.emit(TextDelta(delta="live only"))
        await sink.emit(ToolCallReady(id="call-1", name="search", arguments={"q": "postroom"}))
        await sink.emit(
            RunFinish(
                thread_id=activation.thread_id, run_id=run_id, termination=TerminationReason.natural_end()
            )
        )
        run = await activation.control.threads.load_run(run_id)
        running = replace(run, status=RunStatus.RUNNING, waiting=None, steps=run.steps + 1)
        await activation.control.coordinator.commit(ThreadCommit(thread_id=activation.thread_id, run=running))
        return done(activation)


class CoordinatorAware(Noop):
    """Commits to another store, without the events of its steps."""

    def has_commit_coordinator(self) -> bool:
        return True


async def eventually(look: Callable[[], Awaitable[T | None]]) -> T:
    """Poll until there is a result, and let other tasks run in between."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if found := await look():
                return found
            await a_moment()


async def dispatch_that(
    stores: RunStores, dispatch_id: str, holds: Callable[[RunDispatch], bool]
) -> RunDispatch:
    """Return the dispatch as soon as the condition holds for it."""

    async def look() -> RunDispatch | None:
        row = await stores.dispatches.load_dispatch(dispatch_id)
        return row if row is not None and holds(row) else None

    return await eventually(look)


async def dispatch_in(stores: RunStores, dispatch_id: str, status: RunDispatchStatus) -> RunDispatch:
    """Return the dispatch as soon as it has this status."""
    return await dispatch_that(stores, dispatch_id, lambda row: row.status is status)


async def latest_run_that(stores: RunStores, thread_id: str, holds: Callable[[RunRecord], bool]) -> RunRecord:
    """Return the thread's latest run as soon as the condition holds for it."""

    async def look() -> RunRecord | None:
        run = await stores.threads.latest_run(thread_id)
        return run if run is not None and holds(run) else None

    return await eventually(look)


@dataclass(frozen=True)
class Queued:
    """A prepared request and its dispatch."""

    prepared: Prepared
    dispatch: RunDispatch

    @property
    def dispatch_id(self) -> str:
        return self.dispatch.dispatch_id

    @property
    def run_id(self) -> str:
        return self.dispatch.run_id


async def prepare_queued_dispatch(
    mailbox: Mailbox, thread_id: str, content: str, agent_id: str = "agent"
) -> Queued:
    """Prepare a run and return the dispatch that would deliver it; it is not enqueued."""
    message = Message.user(content, id=f"{thread_id}/{content}")
    request = RunActivation.new(thread_id, [message], agent_id=agent_id)
    prepared = await mailbox.prepare_run_for_dispatch(request)
    return Queued(prepared, mailbox.build_dispatch(prepared.activation))


async def enqueue_prepared_dispatch(
    mailbox: Mailbox, stores: RunStores, thread_id: str, content: str, **changes: Any
) -> Queued:
    """Prepare a run and enqueue its dispatch, without a hint."""
    queued = await prepare_queued_dispatch(mailbox, thread_id, content)
    stored = await stores.dispatches.enqueue(replace(queued.dispatch, **changes))
    return Queued(queued.prepared, stored)


def make_run(run_id: str, thread_id: str, status: RunStatus = RunStatus.RUNNING, **fields: Any) -> RunRecord:
    """Return a run of instant 1."""
    finished_at = 2 if status is RunStatus.DONE else None
    return RunRecord(
        **{
            "run_id": run_id,
            "thread_id": thread_id,
            "agent_id": "agent",
            "status": status,
            "created_at": 1,
            "updated_at": 1,
            "finished_at": finished_at,
        }
        | fields
    )


def waiting_run(
    run_id: str,
    thread_id: str,
    reason: WaitingReason = WaitingReason.BACKGROUND_TASKS,
    **fields: Any,
) -> RunRecord:
    """Return a run of instant 1 that waits."""
    return make_run(
        run_id,
        thread_id,
        RunStatus.WAITING,
        **({"waiting": RunWaitingState(reason=reason), "steps": 2} | fields),
    )


def make_resume() -> ToolCallResume:
    """Return the decision d1: yes."""
    return ToolCallResume(decision_id="d1", result={"approved": True})


def sample_dispatch(thread_id: str, run_id: str, dispatch_id: str, *, now: int, **fields: Any) -> RunDispatch:
    """Return a dispatch of the highest priority with three attempts."""
    return RunDispatch.queued(
        dispatch_id, thread_id, run_id, created_at=now, priority=0, max_attempts=3, **fields
    )


def put_to_work(mailbox: Mailbox, dispatch: RunDispatch, sink: ReconnectableEventSink) -> None:
    """Make the worker of the thread report that it executes this dispatch."""
    worker = mailbox.get_or_create_worker(dispatch.thread_id)
    concluded = asyncio.get_running_loop().create_future()
    begun = Claimed(dispatch=dispatch, instance_id="i")
    worker.job = Job(dispatch=dispatch, begun=begun, sink=sink, stops_at=0, kept_since=0, concluded=concluded)
    worker.status = WorkerStatus.RUNNING


async def seed_messages(stores: RunStores, run: RunRecord, *messages: Message) -> None:
    """Append messages to a thread and store a run of it."""
    known = await stores.threads.load_thread(run.thread_id)
    await stores.coordinator.commit(
        ThreadCommit(
            thread_id=run.thread_id,
            messages=tuple(
                one if one.id else one.with_id(f"{run.thread_id}/{number}/{one.text()}")
                for number, one in enumerate(messages)
            ),
            expected_message_count=known.message_count if known else 0,
            run=run,
        )
    )


async def events_of(stores: RunStores, thread_id: str) -> tuple[CanonicalEvent, ...]:
    """Return the log of a thread."""
    return (await stores.events.list(EventScope.thread(thread_id), limit=200)).events


async def kinds_of(stores: RunStores, thread_id: str) -> list[str]:
    """Return the kinds of events in a thread's log."""
    return [event.event_kind for event in await events_of(stores, thread_id)]


def operations(mailbox: Mailbox, operation: str, result: str = "ok") -> float:
    """Return how often a store operation came to this result."""
    return mailbox.metrics.value("postroom_mailbox_operations_total", operation=operation, result=result)


def runs_ended(mailbox: Mailbox, outcome: str) -> float:
    """Return how many runs came to this outcome."""
    return mailbox.metrics.value("postroom_runs_total", outcome=outcome)


def only(events: Sequence[CanonicalEvent], kind: str) -> CanonicalEvent:
    """Return the one event of this kind."""
    (event,) = [event for event in events if event.event_kind == kind]
    return event


async def read_to_end(stream: Any) -> list[Any]:
    """Return the remaining events of a run's stream."""
    async with asyncio.timeout(PATIENCE):
        return [event async for event in stream]


async def until(condition: Callable[[], object]) -> None:
    """Yield to other tasks until the condition holds."""

    async def look() -> object:
        return condition()

    await eventually(look)


async def turns() -> None:
    """Yield to other tasks for a while, in which a forbidden effect would happen."""
    for _ in range(200):
        await asyncio.sleep(0)


async def drop(command: LiveRunCommand) -> bool:
    return False


async def _accept(command: LiveRunCommand) -> bool:
    return True


@asynccontextmanager
async def listening(
    channels: LiveChannels, target: LiveRunTarget, answer: Answer = _accept
) -> AsyncIterator[list[LiveRunCommand]]:
    """Hear the commands to a target; `answer` decides for each whether it is accepted or dropped."""
    heard: list[LiveRunCommand] = []
    subscription = await channels.open(target)

    async def serve() -> None:
        async for entry in subscription:
            with entry:
                heard.append(entry.command)
                if await answer(entry.command):
                    entry.receipt.ack()

    tasks = Tasks("listener")
    served = tasks.start(serve(), name=target.thread_id)
    try:
        yield heard
        subscription.close()
        async with asyncio.timeout(60):
            await served
    finally:
        subscription.close()
        await tasks.close()


async def as_time_passes(timer: ManualClock, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; tasks that sleep by the timer are woken during it."""
    tasks = Tasks("work under a moving clock")
    task = tasks.start(work, name="work")
    try:
        async with asyncio.timeout(60):
            while not task.done():
                await asyncio.sleep(0)
                if timer.sleeping:
                    timer.advance(timedelta(milliseconds=25))
        return await task
    finally:
        await tasks.close()
