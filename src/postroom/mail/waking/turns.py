"""Gives a run the letters that began it, those that are still unread, and notes that it has them."""

from collections.abc import Sequence
from dataclasses import replace

from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.messages import Message
from postroom.contracts.store import MailStore, MailWrites
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import Handling
from postroom.mail.waking.words import agent_of, letters_named


class LetterTurns(RunDispatchExecutor):
    """Stands around what runs agents: a run whose letters were all read meanwhile does not begin."""

    def __init__(self, within: RunDispatchExecutor, store: MailStore, clock: Clock) -> None:
        self._within = within
        self._store = store
        self._clock = clock

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run of an agent and return how it ended."""
        whose = agent_of(activation.thread_id)
        if whose is None:
            return await self._within.run(activation, sink)
        slug, name = whose
        taken = await self._store.write(lambda tx: self._injected(tx, activation, slug, name))
        if not taken:
            return AgentRunResult(run_id=activation.run_id or "")
        told = replace(activation, messages=taken, agent_id=f"{name}@{slug}")
        return await self._within.run(told, sink)

    def _injected(
        self, tx: MailWrites, activation: RunActivation, slug: str, name: str
    ) -> tuple[Message, ...]:
        """Return what the run is to read, and note that it has it."""
        project = tx.project(slug)
        agent = None if project is None else tx.agent(project.id, name)
        kept: list[Message] = []
        for message in activation.messages:
            letters = letters_named([message.id or ""])
            if letters and (agent is None or not _is_open(tx, letters[0], agent.id)):
                continue
            if letters and agent is not None:
                handling = Handling(
                    message_id=letters[0],
                    agent_id=agent.id,
                    run_id=activation.run_id or "",
                    injected_at=self._clock.now(),
                )
                tx.put_handling(handling)
            kept.append(message)
        return tuple(kept)

    def recovery(self, activation: RunActivation) -> Recovery:
        """Say how a run that was cut off is executed again."""
        return self._within.recovery(activation)

    def cancel(self, id: str) -> bool:
        """Ask a run to end."""
        return self._within.cancel(id)

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's run to end and wait until it has."""
        return await self._within.cancel_and_wait_by_thread(thread_id)

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Hand a decision to a run."""
        return self._within.send_decision(id, tool_call_id, resume)

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Hand messages to a run for its next step."""
        return self._within.send_messages(id, messages)

    def wake_pending_boundary(self, id: str) -> bool:
        """Tell a run that messages wait for it."""
        return self._within.wake_pending_boundary(id)

    def commits_steps(self, thread_id: str) -> bool:
        """Say whether the steps of this thread's runs are committed by what executes them."""
        return self._within.commits_steps(thread_id)


def _is_open(tx: MailWrites, message_id: int, agent_id: int) -> bool:
    """Say whether a letter is still to be read."""
    message = tx.message(message_id)
    mine = next((one for one in tx.recipients([message_id])[message_id] if one.agent_id == agent_id), None)
    return message is not None and message.recalled_at is None and mine is not None and mine.read_at is None
