"""The executor for agents that are models, which runs the built-in loop with mail operations as tools."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from postroom.app.model_tools import tools_for
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock, Timer, milliseconds
from postroom.contracts.errors import InvalidRunner, RunnerNotFound, RunnerSecretMissing
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.messages import Message
from postroom.contracts.quoting import one_line
from postroom.contracts.records import replace
from postroom.contracts.runners import ModelRunner, Runners
from postroom.contracts.runs import agent_of
from postroom.mail.context import Caller
from postroom.mail.waking.prompts import DECISION
from postroom.ports import RunControl
from postroom.runtime import AgentRuntime, AgentSpec, MapResolver, OpenAICompatibleModel, ResolvedAgent
from postroom.services.calls import Calls
from postroom.stores.mail.store import MailStore

_INTRODUCTION: Final = (
    "You are {name}, an agent of the project {project}. Your tools are operations of the project's "
    "mail room; they act as {name} only. You have no environment variables: if a text mentions a "
    "run_id or a variable, your tools use it already."
)


class ModelAgents(AgentRuntime):
    """Runs each agent with the model that the agent's runner names.

    The model sees the conversation in a chat, and the messages and earlier steps in all other runs. Tool
    calls are committed before they are executed, so an interrupted run never repeats a change.
    """

    def __init__(
        self,
        runners: Runners,
        calls: Calls,
        store: MailStore,
        *,
        environment: Mapping[str, str],
        clock: Clock,
        timer: Timer,
    ) -> None:
        self._agents: dict[str, ResolvedAgent] = {}
        """The agents, keyed by id, in their state at the start of their last run."""
        super().__init__(MapResolver(self._agents), clock=clock, timer=timer)
        self._runners = runners
        self._calls = calls
        self._store = store
        self._environment = environment
        self._models: dict[tuple[str, str | None], OpenAICompatibleModel] = {}

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run of an agent until the run ends or waits for a person.

        Raises:
            RunnerNotFound: The agent has no runner.
            InvalidRunner: The runner of the agent is not a model, or names an unknown tool.
            RunnerSecretMissing: The variable with the key of the endpoint is not set.
            MissingExtra: The client of the endpoint is not installed.
            InferenceError: The model failed. `retryable` is true if a retry may help.
            StaleClaim: The worker has lost the run.
        """
        agent_id = activation.agent_id or "default"
        runner = await self._runners.runner_of(agent_id)
        if runner is None:
            raise RunnerNotFound(f"agent {agent_id!r} has no runner", value=agent_id)
        if not isinstance(runner, ModelRunner):
            raise InvalidRunner(f"the runner of {agent_id!r} does not use a model", value=runner.kind.value)
        name, _, slug = agent_id.partition("@")
        addressed = await self._store.read(lambda tx: tx.agent_addressed(slug, name))
        if addressed is None:
            raise RunnerNotFound(f"there is no agent {agent_id}", value=agent_id)
        caller = Caller(agent_id=addressed.agent.id)
        introduction = _INTRODUCTION.format(name=one_line(name), project=one_line(slug))
        spec = AgentSpec(
            model=runner.model,
            agent_id=agent_id,
            system_prompt=f"{introduction}\n\n{runner.instructions}".strip(),
            max_rounds=runner.max_steps,
            wall_timeout_ms=milliseconds(runner.timeout),
            commits_calls=True,
        )
        ends = ("done_task", "update_task") if runner.claims_tasks else ()
        named = tuple(dict.fromkeys((*runner.tools, *ends)))
        tools = tools_for(named, self._calls, project=slug, agent=name, caller=caller)
        key_name = runner.api_key_env
        key = None if key_name is None else read_secret(key_name, self._environment)
        where = runner.base_url, key_name
        if where not in self._models:
            # The constructor of the client reads the certificates of the system.
            made = await asyncio.to_thread(OpenAICompatibleModel, runner.base_url, key)
            if self._models.setdefault(where, made) is not made:
                await made.close()
        self._agents[agent_id] = ResolvedAgent(spec=spec, model=self._models[where], tools=tuple(tools))
        return await super().run(await _request_as_seen(activation), sink)

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Pass messages to an active run of a chat; return False if the run does not belong to a chat."""
        active = self._runs.find(id)
        if active is None or agent_of(active.identity.thread_id) is not None:
            return False
        return super().send_messages(id, messages)

    async def close(self) -> None:
        """Close the connections to the models' endpoints, after the caller has ended all runs."""
        await super().close()
        while self._models:
            _, model = self._models.popitem()
            await model.close()


async def _request_as_seen(activation: RunActivation) -> RunActivation:
    messages = tuple(
        message for message in activation.messages if not (message.id or "").startswith(DECISION)
    )
    activation = replace(activation, messages=messages)
    control = activation.control
    if agent_of(activation.thread_id) is None or not isinstance(control, RunControl):
        return activation
    run = await control.threads.load_run(activation.run_id or "")
    seen = run.input.trigger_message_ids if run is not None and run.steps and run.input is not None else ()
    only = frozenset({*seen, *(message.id for message in messages if message.id)})
    return replace(activation, control=replace(control, only=only))


def read_secret(name: str, environment: Mapping[str, str]) -> str:
    """Return the key or secret in the environment variable `name`.

    Raises:
        RunnerSecretMissing: The variable is not set, or is blank.
    """
    secret = environment.get(name, "").strip()
    if not secret:
        raise RunnerSecretMissing(f"the variable {name} is not set in the server's environment", value=name)
    return secret
