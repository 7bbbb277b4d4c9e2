"""Definitions of agents, and how agents are found by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from postroom.contracts.activation import InferenceOverride
from postroom.contracts.errors import AgentNotFound
from postroom.contracts.inference import Model
from postroom.contracts.records import replace
from postroom.contracts.runs import Usage
from postroom.runtime.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """The settings of an agent; durations are in milliseconds.

    `tools` lists the names of the permitted tools; None permits all tools. `max_rounds` and `wall_timeout_ms`
    limit one execution. `token_budget` is the limit for all executions of a run together. A run that exceeds
    a limit is stopped, and the completed work of the run is kept.

    `context_window` is the size of the model's context in tokens, or None if the size is unknown. If
    `commits_calls` is True, tool calls are committed before they are executed, and are executed again after a
    crash. `prices` maps a model name to the prices in US dollars of a million input and a million output
    tokens.
    """

    model: str
    agent_id: str = "default"
    system_prompt: str = ""
    tools: tuple[str, ...] | None = None
    overrides: InferenceOverride | None = None
    max_rounds: int = 32
    token_budget: int | None = None
    context_window: int | None = None
    wall_timeout_ms: int | None = None
    tool_timeout_ms: int | None = 600_000
    parallel_tools: bool = True
    commits_calls: bool = False
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def add_cost(self, usage: Usage, overrides: InferenceOverride | None) -> Usage:
        """Return the usage with the cost included, if the price of the model is known."""
        model = overrides.upstream_model if overrides is not None else None
        read, written = self.prices.get(model or self.model, (0, 0))
        cost = round(usage.input_tokens * read + usage.output_tokens * written)
        return replace(usage, cost_micros=usage.cost_micros + cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedAgent:
    """An agent that is ready to run, with settings, a model and tools."""

    spec: AgentSpec
    model: Model
    tools: tuple[Tool, ...] = ()

    @classmethod
    def new(
        cls, agent_id: str, model_name: str, system_prompt: str, model: Model, tools: Iterable[Tool] = ()
    ) -> "ResolvedAgent":
        """Return an agent with default limits."""
        spec = AgentSpec(agent_id=agent_id, model=model_name, system_prompt=system_prompt)
        return cls(spec=spec, model=model, tools=tuple(tools))

    def with_tool(self, tool: Tool) -> "ResolvedAgent":
        """Return a copy of the agent with one more tool."""
        return replace(self, tools=(*self.tools, tool))

    def usable_tools(self) -> dict[str, Tool]:
        """Return the permitted tools, keyed by name; the first of several tools with a name is used."""
        usable: dict[str, Tool] = {}
        for tool in self.tools:
            name = tool.descriptor.name
            if self.spec.tools is None or name in self.spec.tools:
                usable.setdefault(name, tool)
        return usable


class AgentResolver(Protocol):
    """Finds an agent by the agent's id."""

    def resolve(self, agent_id: str) -> ResolvedAgent:
        """Return the agent with the id `agent_id`.

        Raises:
            AgentNotFound: No agent has this id.
        """
        ...


class FixedResolver:
    """An agent resolver that returns the same agent for every id."""

    def __init__(self, agent: ResolvedAgent) -> None:
        self._agent = agent

    def resolve(self, agent_id: str) -> ResolvedAgent:
        """Return the agent of this resolver, whatever the id is."""
        return self._agent


class MapResolver:
    """An agent resolver that looks agents up in a mapping; agents may be added to the mapping later."""

    def __init__(self, agents: Mapping[str, ResolvedAgent]) -> None:
        self._agents = agents

    def resolve(self, agent_id: str) -> ResolvedAgent:
        """Return the agent with the id `agent_id`.

        Raises:
            AgentNotFound: No agent has this id.
        """
        if (agent := self._agents.get(agent_id)) is None:
            raise AgentNotFound(f"agent not found: {agent_id!r}", value=agent_id)
        return agent


def merged(own: InferenceOverride | None, asked: InferenceOverride | None) -> InferenceOverride | None:
    """Return the model settings `asked`, completed with the agent's settings `own`."""
    if own is None or asked is None:
        return asked or own
    return InferenceOverride(
        upstream_model=asked.upstream_model or own.upstream_model,
        temperature=own.temperature if asked.temperature is None else asked.temperature,
        max_tokens=own.max_tokens if asked.max_tokens is None else asked.max_tokens,
        top_p=own.top_p if asked.top_p is None else asked.top_p,
        reasoning_effort=asked.reasoning_effort or own.reasoning_effort,
        more={**own.more, **asked.more},
    )
