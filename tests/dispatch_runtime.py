"""The built-in runtime in a mailbox, with a scripted model. For tests only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dispatch.conftest import Room
from postroom.contracts.inference import InferenceResult, StopReason
from postroom.contracts.messages import ContentBlock, ToolCall
from postroom.runtime import AgentRuntime, BackgroundTasks, FixedResolver, ResolvedAgent, ScriptedModel, Tool


def calls(name: str, call_id: str, *, text: str) -> InferenceResult:
    """Return what a model says that asks for a tool."""
    return InferenceResult(
        content=(ContentBlock(text=text),),
        tool_calls=(ToolCall(id=call_id, name=name, arguments={}),),
        stop_reason=StopReason.TOOL_USE,
    )


@asynccontextmanager
async def runtime_of(
    room: Room, model: ScriptedModel, *tools: Tool, tasks: BackgroundTasks | None = None
) -> AsyncIterator[AgentRuntime]:
    """Give a runtime in which every agent is the same, on the room's time."""
    agent = ResolvedAgent.new("agent", "m", "sys", model, tools)
    runtime = AgentRuntime(FixedResolver(agent), clock=room.clock, timer=room.clock, tasks=tasks)
    try:
        yield runtime
    finally:
        await room.close()  # what still runs ends before what it runs in
        await runtime.close()
