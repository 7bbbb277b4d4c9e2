"""Which messages a run has in its hands, from its beginning and while it is at work; each is noted."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.contracts.mail import Agent
from postroom.contracts.messages import Message
from postroom.contracts.runs import RunRecord
from postroom.contracts.waking import MessageRun
from postroom.mail.waking.prompts import messages_named
from postroom.stores.mail.access import MailReads, MailWrites

AgentName = tuple[str, str]
"""Slug of the project, and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """What a run that begins, or goes on, has to do."""

    messages: tuple[Message, ...]
    """What it is told now."""
    mail: tuple[int, ...]
    """The messages in its hands, those of an execution before this one first."""
    mail_thread: str | None
    """The thread of its messages, where it has any."""
    conversation: str | None = None
    """What tells that thread from those of other projects."""

    @property
    def has_work(self) -> bool:
        """Whether anything is left to be done."""
        return bool(self.messages or self.mail)


class MailClaims:
    """Notes what a run of an agent has in its hands."""

    def __init__(self, whose: AgentName, run_id: str) -> None:
        self._whose = whose
        self._run_id = run_id

    def begun(
        self,
        tx: MailWrites,
        messages: Sequence[Message],
        before: RunRecord | None = None,
        *,
        answered: Sequence[str] = (),
        goes_on: bool = False,
    ) -> RunInput:
        """Return what the run is to read, and note that it has it and is at work.

        `answered` are the questions whose answers it goes on with. One that `goes_on` with an answer of a
        person has work also where no message is left.
        """
        agent = self._agent(tx)
        now = set(messages_named([one.id or "" for one in messages]))
        messages = self._open(tx, agent, messages)
        earlier = [one for one in _messages_before(before) if one not in now]
        kept = [one for one in earlier if self._is_open(tx, agent, one)]
        if agent is not None and (messages or kept or goes_on):
            tx.begin_run(self._run_id, agent.id, tx.now(), answered=answered)
        return self._input(tx, messages, kept)

    def noted(self, tx: MailReads, messages: Sequence[Message]) -> RunInput:
        """Return what a run is to read whose beginning is noted already."""
        project = tx.project(self._whose[0])
        agent = None if project is None else tx.agent(project.id, self._whose[1])
        message_runs = tx.message_runs(messages_named([one.id or "" for one in messages]))

        def is_mine(message: Message) -> bool:
            mail = messages_named([message.id or ""])
            known = message_runs[mail[0]].get(agent.id) if mail and agent is not None else None
            return not mail or (known is not None and known.run_id == self._run_id)

        return self._input(tx, tuple(filter(is_mine, messages)), ())

    def _input(self, tx: MailReads, messages: tuple[Message, ...], kept: Sequence[int]) -> RunInput:
        mail = (*kept, *messages_named([one.id or "" for one in messages]))
        first = tx.message(mail[0]) if mail else None
        if first is None:
            return RunInput(messages=messages, mail=mail, mail_thread=None)
        return RunInput(
            messages=messages,
            mail=mail,
            mail_thread=first.thread_id,
            conversation=f"{first.project_id}/{first.thread_id}",
        )

    def taken(self, tx: MailWrites, messages: Sequence[Message], *, told: bool) -> tuple[Message, ...]:
        """Return what of the messages that came the run is to read, and note that it has it.

        What it was `told` is in its hands, also where it has read it itself.
        """
        return self._open(tx, self._agent(tx), messages, told=told)

    def waiting(self, tx: MailReads, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return what of the messages that came is neither read nor taken back; nothing is noted."""
        project = tx.project(self._whose[0])
        agent = None if project is None else tx.agent(project.id, self._whose[1])
        ids = messages_named([one.id or "" for one in messages])
        found, readers = tx.messages(ids), tx.recipients(ids)

        def waits(message: Message) -> bool:
            mail = messages_named([message.id or ""])
            if not mail or agent is None:
                return not mail
            mine = next((one for one in readers.get(mail[0], ()) if one.agent_id == agent.id), None)
            kept = found.get(mail[0])
            return kept is not None and kept.recalled_at is None and mine is not None and mine.read_at is None

        return tuple(filter(waits, messages))

    def _agent(self, tx: MailWrites) -> Agent | None:
        project = tx.project(self._whose[0])
        if project is None:
            return None
        tx.lock_projects([project.id])
        return tx.agent(project.id, self._whose[1])

    def _open(
        self, tx: MailWrites, agent: Agent | None, messages: Sequence[Message], *, told: bool = False
    ) -> tuple[Message, ...]:
        def is_read(message: Message) -> bool:
            mail = messages_named([message.id or ""])
            return not mail or self._is_open(tx, agent, mail[0], told=told)

        return tuple(one for one in messages if is_read(one))

    def _is_open(self, tx: MailWrites, agent: Agent | None, message_id: int, *, told: bool = False) -> bool:
        """Note that the run has a message in its hands; False when nobody needs to handle it any more."""
        message = tx.message(message_id)
        if agent is None or message is None or message.recalled_at is not None:
            return False
        known = tx.message_runs([message_id])[message_id].get(agent.id)
        if known is not None and known.run_id == self._run_id and known.ended_at is None:
            return True  # the run was cut off with it in its hands, and may have read it itself
        if agent.retired_at is not None or tx.runner(agent.id) is None:
            return False
        readers = tx.recipients([message_id])[message_id]
        mine = next((one for one in readers if one.agent_id == agent.id), None)
        if mine is None or (mine.read_at is not None and not told):
            return False
        message_run = MessageRun(
            message_id=message_id, agent_id=agent.id, run_id=self._run_id, delivered_at=tx.now()
        )
        tx.put_message_run(message_run)
        return True


def _messages_before(run: RunRecord | None) -> list[int]:
    """Return the messages that a run was given so far, also those that came while it was at work."""
    return messages_named(run.input.trigger_message_ids if run is not None and run.input is not None else ())
