"""Tools with which a model begins work in the background, and ends it."""

from collections.abc import Awaitable, Callable

from postroom.contracts.messages import Json
from postroom.contracts.tools import ToolDescriptor, ToolResult
from postroom.runtime.background import BackgroundTasks
from postroom.runtime.tools import ToolContext

Work = Callable[[dict[str, Json], ToolContext], Awaitable[Json]]


class BackgroundTaskTool:
    """Begins its work and answers at once; the run is told when the work has ended."""

    def __init__(self, tasks: BackgroundTasks, descriptor: ToolDescriptor, work: Work) -> None:
        self._tasks = tasks
        self._descriptor = descriptor
        self._work = work

    @property
    def descriptor(self) -> ToolDescriptor:
        """What the model is told of it."""
        return self._descriptor

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Begin the work."""
        task_id = self._tasks.spawn(
            context.identity.thread_id,
            self._descriptor.name,
            self._descriptor.description,
            lambda: self._work(arguments, context),
            owner=context.identity,
        )
        return ToolResult.success(self._descriptor.name, {"task_id": task_id, "status": "running"})


class CancelTaskTool:
    """Cancels a background task of the same thread."""

    descriptor = ToolDescriptor(
        id="cancel_task",
        name="cancel_task",
        description="Cancel a background task that still runs.",
        parameters={
            "type": "object",
            "properties": {"task_id": {"type": "string", "description": "as it was told when it began"}},
            "required": ["task_id"],
            "additionalProperties": False,
        },
    )

    def __init__(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Cancel the task; one of another thread counts as unknown."""
        task_id = arguments["task_id"]
        own = {task.task_id for task in self._tasks.running(thread_id=context.identity.thread_id)}
        if task_id not in own or not self._tasks.cancel(task_id):
            running = ", ".join(sorted(own)) or "none"
            return ToolResult.error("cancel_task", f"no task {task_id!r} runs; running: {running}")
        return ToolResult.success("cancel_task", {"task_id": task_id, "status": "cancelling"})
