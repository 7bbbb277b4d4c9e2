"""The built-in executor: an agent loop with models, tools, suspension, background tasks, checkpoints."""

from postroom.runtime.agents import AgentResolver, AgentSpec, FixedResolver, MapResolver, ResolvedAgent
from postroom.runtime.background import (
    BackgroundEvent,
    BackgroundTask,
    BackgroundTasks,
    BackgroundTaskTool,
    CancelTaskTool,
    WakeSubmitter,
)
from postroom.runtime.openai import OpenAICompatibleModel
from postroom.runtime.runtime import AgentRuntime
from postroom.runtime.scripted import ScriptedModel
from postroom.runtime.tools import FunctionTool, Tool, ToolContext, function_tool

__all__ = [
    "AgentResolver",
    "AgentRuntime",
    "AgentSpec",
    "BackgroundEvent",
    "BackgroundTask",
    "BackgroundTaskTool",
    "BackgroundTasks",
    "CancelTaskTool",
    "FixedResolver",
    "FunctionTool",
    "MapResolver",
    "OpenAICompatibleModel",
    "ResolvedAgent",
    "ScriptedModel",
    "Tool",
    "ToolContext",
    "WakeSubmitter",
    "function_tool",
]
