"""Background work of tools, which continues after the step that started it.

When background work ends, its run is notified.

running run ── spawn ──▶ task ── ends ──▶ the run still executes: its inbox, read at the next step
                                   └─────▶ it does not: a wake is submitted, so that it is executed again
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import TYPE_CHECKING, Protocol

from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.activation import AdapterKind, RunActivation, RunMode, RunOrigin, RunTraceContext
from postroom.contracts.agent_events import RunIdentity
from postroom.contracts.clock import Timer
from postroom.contracts.errors import InvalidArgument, PostroomError, RunNotOpen
from postroom.contracts.messages import Json, Message
from postroom.contracts.tools import ToolDescriptor, ToolResult
from postroom.log import get_logger
from postroom.runtime.checkpoint import BackgroundNote
from postroom.runtime.tools import ToolContext

if TYPE_CHECKING:
    from postroom.runtime.runtime import AgentRuntime

_LOG = get_logger(__name__)

RESERVED_NAMES = frozenset({"parent", "self", "all", "broadcast"})
ORPHANED = "task orphaned: runtime restarted while running"
WAKE_PAUSES_MS = (250, 1_000, 5_000, 30_000)
"""Pauses in milliseconds between the attempts to submit a wake that was refused."""


class WakeSubmitter(Protocol):
    """A function that resumes the run of an ended background task, or starts another run."""

    def __call__(self, activation: RunActivation, /) -> Awaitable[object]:
        """Submit a request; the request is durable when the call returns.

        Raises:
            RunNotOpen: The run cannot continue; the caller must submit the request again without the run's
                id.
            PostroomError: The request was not accepted; the caller must submit it again.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundTask:
    """A running background task; `owner` is the run that started the task, or None if unknown."""

    task_id: str
    thread_id: str
    kind: str
    description: str
    name: str | None = None
    owner: RunIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundEvent:
    """An event of a background task; `facts` contains all fields except the kind and the task id."""

    kind: str
    task_id: str
    facts: dict[str, Json]

    def message(self, message_id: str) -> Message:
        """Return the event as a message to the model, with the field values escaped."""
        body = json.dumps(
            {"kind": self.kind, "task_id": self.task_id, **self.facts},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for sign in "<>&":
            body = body.replace(sign, f"\\u{ord(sign):04x}")
        opening = f'<background-task-event kind="{escape(self.kind)}" task_id="{escape(self.task_id)}">'
        return Message.internal(f"{opening}\n{body}\n</background-task-event>", id=message_id)


class BackgroundTasks:
    """The background tasks of one process, which tools start for runs."""

    def __init__(self, *, timer: Timer | None = None) -> None:
        self.instance = uuid.uuid4().hex
        """The id of this object, and therefore of the process."""
        self._timer = timer or SystemTimer()
        self._numbers = count()
        self._works = Tasks("background tasks")
        self._watches = Tasks("background watches")
        self._running: dict[str, tuple[BackgroundTask, asyncio.Task[Json]]] = {}
        self._untold: dict[str, list[Message]] = {}
        self._host: AgentRuntime | None = None

    def attach(self, host: "AgentRuntime") -> None:
        """Set the runtime that receives notifications about ended tasks."""
        self._host = host

    def spawn(
        self,
        thread_id: str,
        kind: str,
        description: str,
        work: Callable[[], Awaitable[Json]],
        *,
        name: str | None = None,
        owner: RunIdentity | None = None,
    ) -> str:
        """Start a background task, and return the task's id.

        `work` returns JSON data, or raises an exception if the task fails. Without `owner`, the task belongs
        to the active run on the thread.

        Raises:
            InvalidArgument: The task's name is reserved.
        """
        if name in RESERVED_NAMES:
            raise InvalidArgument(
                f"{name!r} is not a valid task name",
                value=name,
                remedy="choose another name, or leave it out",
            )
        if owner is None and self._host is not None:
            owner = self._host.owner_on(thread_id)
        task = BackgroundTask(
            task_id=f"bg_{next(self._numbers)}",
            thread_id=thread_id,
            kind=kind,
            description=description,
            name=name,
            owner=owner,
        )
        running = self._works.start(_run_work(work), name=task.task_id)
        self._running[task.task_id] = (task, running)
        self._watches.start(self._watch(task, running), name=task.task_id)
        return task.task_id

    def cancel(self, task_id: str) -> bool:
        """Cancel a task, and notify the task's run; return False if the task is not running."""
        if (value := self._running.get(task_id)) is None:
            return False
        return value[1].cancel()

    def running(
        self, *, thread_id: str | None = None, run_id: str | None = None
    ) -> tuple[BackgroundTask, ...]:
        """Return the running tasks of a thread or of a run."""
        return tuple(
            task
            for task, _ in self._running.values()
            if (thread_id is None or task.thread_id == thread_id)
            and (run_id is None or (task.owner is not None and task.owner.run_id == run_id))
        )

    def notes(self, run_id: str) -> tuple[BackgroundNote, ...]:
        """Return the notes about the running tasks of a run, which are stored with a checkpoint."""
        return tuple(
            BackgroundNote(task_id=task.task_id, description=task.description, instance=self.instance)
            for task in self.running(run_id=run_id)
        )

    def orphans(self, notes: Iterable[BackgroundNote]) -> list[Message]:
        """Return messages about tasks that failed because the process of the tasks exited."""
        return [
            BackgroundEvent(kind="failed", task_id=note.task_id, facts={"error": ORPHANED}).message(
                _message_id()
            )
            for note in notes
            if note.instance != self.instance
        ]

    def untold(self, thread_id: str) -> list[Message]:
        """Return and remove the messages about ended tasks that no run of the thread has received."""
        return self._untold.pop(thread_id, [])

    def abandon(self, run_id: str) -> None:
        """Cancel the tasks of an ended run without notifying the run."""
        for task in self.running(run_id=run_id):
            _, running = self._running.pop(task.task_id)
            running.cancel()

    async def close(self) -> None:
        """Cancel all running tasks without notifying their runs."""
        self._running.clear()
        await self._watches.close()
        await self._works.close()

    async def _watch(self, task: BackgroundTask, running: "asyncio.Task[Json]") -> None:
        await asyncio.wait({running})
        if self._running.pop(task.task_id, None) is None:
            return
        kind, facts = "failed", dict[str, Json]()
        if running.cancelled():
            kind = "cancelled"
        elif error := running.exception():
            text = f"{type(error).__name__}: {error}"
            facts["error"] = error.describe() if isinstance(error, PostroomError) else text
        else:
            try:
                json.dumps(running.result(), ensure_ascii=False, allow_nan=False).encode()
            except (TypeError, ValueError, RecursionError) as problem:
                facts["error"] = f"the task's result is not JSON: {problem}"
            else:
                kind, facts["result"] = "completed", running.result()
        event = BackgroundEvent(kind=kind, task_id=task.task_id, facts=facts)
        message = event.message(_message_id())
        run_id = task.owner.run_id if task.owner else None
        if self._host is not None and run_id and self._host.hand_over(run_id, message):
            return
        # No active run takes the message, so a new run is started with it.
        submit = self._host.submitter() if self._host is not None else None
        is_told, refused = False, 0
        try:
            for pause in (*WAKE_PAUSES_MS, None):
                if submit is None:
                    break
                try:
                    await submit(wake_request(task, message, run_id))
                except RunNotOpen:
                    refused += 1
                    # the run may just be ending, so ask again
                    run_id = run_id if refused == 1 else None
                except PostroomError as failure:
                    _LOG.warning("background.wake_failed", task_id=task.task_id, code=failure.code)
                else:
                    is_told = True
                    break
                if pause is not None:
                    await self._timer.sleep(pause)
        finally:
            if not is_told:
                _LOG.warning("background.untold", thread_id=task.thread_id, task_id=task.task_id)
                self._untold.setdefault(task.thread_id, []).append(message)


def _message_id() -> str:
    return f"msg_{uuid.uuid4().hex}"


async def _run_work(work: Callable[[], Awaitable[Json]]) -> Json:
    return await work()


def wake_request(task: BackgroundTask, message: Message, run_id: str | None) -> RunActivation:
    """Return the request that reports an ended task to the task's run or thread."""
    trace = RunTraceContext(
        origin=RunOrigin.INTERNAL, adapter=AdapterKind.INTERNAL, run_mode=RunMode.INTERNAL_WAKE
    )
    return RunActivation(
        thread_id=task.thread_id,
        messages=(message,),
        agent_id=task.owner.agent_id if task.owner else None,
        continue_run_id=run_id,
        trace=trace,
    )


Work = Callable[[dict[str, Json], ToolContext], Awaitable[Json]]


class BackgroundTaskTool:
    """A tool that starts a background task and returns the task's id immediately."""

    def __init__(self, tasks: BackgroundTasks, descriptor: ToolDescriptor, work: Work) -> None:
        self._tasks = tasks
        self.descriptor = descriptor
        self._work = work

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Start the background work of the tool."""
        task_id = self._tasks.spawn(
            context.identity.thread_id,
            self.descriptor.name,
            self.descriptor.description,
            lambda: self._work(arguments, context),
            owner=context.identity,
        )
        return ToolResult.success(self.descriptor.name, {"task_id": task_id, "status": "running"})


class CancelTaskTool:
    """A tool that cancels a background task of the same thread."""

    descriptor = ToolDescriptor(
        id="cancel_task",
        name="cancel_task",
        description="Cancel a running background task.",
        parameters={
            "type": "object",
            "properties": {
                "task_id": {"type": "string", "description": "the task's id, from the answer that started it"}
            },
            "required": ["task_id"],
            "additionalProperties": False,
        },
    )

    def __init__(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Cancel the task; a task of another thread is reported as unknown."""
        task_id = arguments["task_id"]
        own = {task.task_id for task in self._tasks.running(thread_id=context.identity.thread_id)}
        if task_id not in own or not self._tasks.cancel(task_id):
            running = ", ".join(sorted(own)) or "none"
            return ToolResult.error(
                "cancel_task", f"there is no running task {task_id!r}; running: {running}"
            )
        return ToolResult.success("cancel_task", {"task_id": task_id, "status": "cancelling"})
