"""A runtime on the memory stores, with what a mailbox would give it; each wait is bounded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from machine import PATIENCE
from postroom.concurrency import Tasks
from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import AgentEvent
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.inference import InferenceResult, StopReason
from postroom.contracts.live import LiveChannels
from postroom.contracts.messages import (
    Boundary,
    ContentBlock,
    DeliveryMode,
    Message,
    PendingVersion,
    ToolCall,
    select_pending,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import RunMessageInput, RunRecord, RunStatus, Usage
from postroom.ports import RunControl
from postroom.runtime import AgentRuntime, AgentSpec, FixedResolver, ResolvedAgent, ScriptedModel
from postroom.stores.memory import MemoryRunStores
from postroom.testing import ManualClock

T = TypeVar("T")


def calls(*asked: ToolCall, text: str = "", usage: Usage | None = None) -> InferenceResult:
    """A model's answer that calls tools."""
    content = (ContentBlock(text=text),) if text else ()
    return InferenceResult(
        content=content, tool_calls=tuple(asked), stop_reason=StopReason.TOOL_USE, usage=usage
    )


def call(name: str, id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


async def bounded(work: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await work


async def until(condition: Callable[[], object]) -> None:
    """Yield to other tasks until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


class Recorder:
    """Keeps the events of an execution."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    async def emit(self, event: AgentEvent) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        return [event.event_type for event in self.events]

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


class PendingZone:
    """The pending zone of one run, as a mailbox hands it over."""

    def __init__(self, stores: MemoryRunStores, thread_id: str, run_id: str) -> None:
        self._stores, self._thread_id, self._run_id = stores, thread_id, run_id
        self.asked: list[Boundary] = []

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        waiting = await self._stores.threads.pending_messages(self._thread_id)
        return tuple(one.message for one in select_pending(waiting, boundary, self._run_id, group=group))

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        self.asked.append(boundary)
        waiting = await self._stores.threads.pending_messages(self._thread_id)
        taken = select_pending(waiting, boundary, self._run_id, group=group)
        taken = tuple(entry for entry in taken if only is None or entry.message.id in only)
        if not taken:
            return ()
        thread = await self._stores.threads.load_thread(self._thread_id)
        messages = tuple(entry.message for entry in taken)
        commit = ThreadCommit(
            thread_id=self._thread_id,
            messages=messages,
            expected_message_count=thread.message_count if thread else 0,
            consumes=tuple(
                PendingVersion(pending_id=entry.pending_id, revision=entry.revision) for entry in taken
            ),
        )
        await self._stores.coordinator.commit(commit)
        return messages

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        waiting = {entry.pending_id for entry in await self._stores.threads.pending_messages(self._thread_id)}
        committed = await self._stores.threads.load_messages(self._thread_id) or ()
        known = waiting | {message.id for message in committed}
        messages = [message for message in messages if message.id not in known]
        mode = DeliveryMode(boundary=boundary, target_run_id=self._run_id)
        await self._stores.threads.append_pending(self._thread_id, messages, mode)


@dataclass
class Room:
    """Stores, a clock, one agent, and a runtime around them."""

    clock: ManualClock = field(default_factory=ManualClock)
    script: Sequence[Any] = ()
    tools: Sequence[Any] = ()
    spec: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    thread_id: str = "t1"
    run_id: str = "r1"

    def __post_init__(self) -> None:
        self.stores = MemoryRunStores(self.clock)
        self.model = ScriptedModel(self.script)
        spec = AgentSpec(**{"agent_id": "agent", "model": "m", "system_prompt": "sys", **self.spec})
        self.agent = ResolvedAgent(spec=spec, model=self.model, tools=tuple(self.tools))
        self.runtime = self.another_runtime()
        self.sink = Recorder()
        self.coordinator: Any = self.stores.coordinator
        self.pending: PendingZone | None = None
        self._ids = count(1)

    def another_runtime(self, live: LiveChannels | None = None, **options: Any) -> AgentRuntime:
        """A runtime as another process would have it."""
        resolver = FixedResolver(self.agent)
        made = AgentRuntime(resolver, clock=self.clock, timer=self.clock, **{**self.options, **options})
        if live is not None:
            made.listen_to(live)
        return made

    def with_pending(self) -> "Room":
        self.pending = PendingZone(self.stores, self.thread_id, self.run_id)
        return self

    async def say(self, text: str, *, run: RunRecord | None = None) -> Message:
        """Commit what a person says, as a submission does."""
        message = Message.user(text, id=f"u{next(self._ids)}")
        thread = await self.stores.threads.load_thread(self.thread_id)
        await self.stores.coordinator.commit(
            ThreadCommit(
                thread_id=self.thread_id,
                messages=(message,),
                expected_message_count=thread.message_count if thread else 0,
                run=run,
            )
        )
        return message

    async def prepared(self, text: str = "go") -> RunActivation:
        """Store a run with its message, as a mailbox does, and return the request to execute it."""
        now = self.clock.now()
        run = RunRecord(
            run_id=self.run_id,
            thread_id=self.thread_id,
            agent_id="agent",
            status=RunStatus.CREATED,
            resolution_id="pin",
            input=RunMessageInput(thread_id=self.thread_id),
            created_at=now,
            updated_at=now,
        )
        message = await self.say(text, run=run)
        return replace(self.again(), messages=(message,), recovery=Recovery.START)

    def again(self, *decisions: Any, recovery: Recovery = Recovery.RESUME, attempt: int = 1) -> RunActivation:
        """The request to go on with the run."""
        control = RunControl(coordinator=self.coordinator, threads=self.stores.threads, pending=self.pending)
        activation = RunActivation(
            thread_id=self.thread_id,
            agent_id="agent",
            decisions=tuple(decisions),
            attempt=attempt,
            recovery=recovery,
            control=control,
        )
        return activation.hinted(run_id=self.run_id).traced(dispatch_id="d1", session_id="s1")

    async def execute(self, activation: RunActivation | None = None) -> AgentRunResult:
        return await bounded(self.runtime.run(activation or await self.prepared(), self.sink))

    @asynccontextmanager
    async def executing(
        self, activation: RunActivation | None = None
    ) -> AsyncIterator["asyncio.Task[AgentRunResult]"]:
        """Execute during the test; runs that are active at its end are cancelled."""
        tasks = Tasks("test")
        work = self.runtime.run(activation or await self.prepared(), self.sink)
        try:
            yield tasks.start(work, name="run")
        finally:
            await tasks.close()

    async def run(self) -> RunRecord:
        record = await self.stores.threads.load_run(self.run_id)
        assert record is not None
        return record

    async def texts(self) -> list[tuple[str, str]]:
        """The committed messages, as pairs of author and text."""
        messages = await self.stores.threads.load_messages(self.thread_id)
        return [(str(message.role), message.text()) for message in messages or ()]

    def asked(self, number: int) -> list[tuple[str, str]]:
        """The messages that the model got in its call with this number, from 1."""
        return [(str(one.role), one.text()) for one in self.model.requests[number - 1].messages]
