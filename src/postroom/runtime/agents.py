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

    `tools` lists the tools that the agent may use, or is None for all tools. `max_rounds` and
    `wall_timeout_ms` limit one execution, and `token_budget` limits all executions of a run together. A run
    that exceeds a limit is stopped, and its work is kept. `context_window` is the size of the model's context
    in tokens, if it is known before the endpoint reports it. With `commits_calls`, the tool calls of a step
    are committed before they are made. After a crash, these calls are repeated under the same ids, without
    another request to the model. `prices` maps the name of a model to its prices in US dollars for a million
    input tokens and a million output tokens.
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
        """Add the cost to a usage, if the price of the model is known."""
        model = overrides.upstream_model if overrides is not None else None
        read, written = self.prices.get(model or self.model, (0, 0))
        cost = round(usage.input_tokens * read + usage.output_tokens * written)
        return replace(usage, cost_micros=usage.cost_micros + cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedAgent:
    """An agent that is ready to run: its settings, its model and its tools."""

    spec: AgentSpec
    model: Model
    tools: tuple[Tool, ...] = ()

    @classmethod
    def new(
        cls, agent_id: str, model_name: str, system_prompt: str, model: Model, tools: Iterable[Tool] = ()
    ) -> "ResolvedAgent":
        """Return an agent with the default limits."""
        spec = AgentSpec(agent_id=agent_id, model=model_name, system_prompt=system_prompt)
        return cls(spec=spec, model=model, tools=tuple(tools))

    def with_tool(self, tool: Tool) -> "ResolvedAgent":
        """Return a copy of the agent with one more tool."""
        return replace(self, tools=(*self.tools, tool))

    def usable_tools(self) -> dict[str, Tool]:
        """Return the permitted tools by name; of tools with the same name, the first is used."""
        usable: dict[str, Tool] = {}
        for tool in self.tools:
            name = tool.descriptor.name
            if self.spec.tools is None or name in self.spec.tools:
                usable.setdefault(name, tool)
        return usable


class AgentResolver(Protocol):
    """Finds an agent by its name."""

    def resolve(self, agent_id: str) -> ResolvedAgent:
        """Return the agent with this name.

        Raises:
            AgentNotFound: No agent has this name.
        """
        ...


class FixedResolver:
    """A resolver of agents that returns the same agent for every name."""

    def __init__(self, agent: ResolvedAgent) -> None:
        self._agent = agent

    def resolve(self, agent_id: str) -> ResolvedAgent:
        """Return the agent, whatever the name is."""
        return self._agent


class MapResolver:
    """Finds agents in a mapping, to which agents may be added later."""

    def __init__(self, agents: Mapping[str, ResolvedAgent]) -> None:
        self._agents = agents

    def resolve(self, agent_id: str) -> ResolvedAgent:
        """Return the agent with this name.

        Raises:
            AgentNotFound: No agent has this name.
        """
        if (agent := self._agents.get(agent_id)) is None:
            raise AgentNotFound(f"agent not found: {agent_id!r}", value=agent_id)
        return agent


def merged(own: InferenceOverride | None, asked: InferenceOverride | None) -> InferenceOverride | None:
    """Return the model settings of a submission; the agent's settings are the defaults."""
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
