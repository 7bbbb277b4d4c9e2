"""The messages of a run, from its start and while it is active; each is stored with the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.contracts.mail import AddressedAgent, Received
from postroom.contracts.messages import Message
from postroom.contracts.runs import RunRecord
from postroom.contracts.waking import MessageRun
from postroom.mail.waking.prompts import messages_named
from postroom.stores.mail.access import MailReads, MailWrites

AgentName = tuple[str, str]
"""Slug of the project, and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """The mail of a run that starts or continues."""

    agent: AddressedAgent | None
    """The agent of the run; None if it is gone."""
    mail: tuple[int, ...] = ()
    """The messages that the run has, those of an earlier execution first."""
    mail_thread: str | None = None
    """The thread of these messages; None if there are none."""
    conversation: str | None = None
    """The project and the thread of these messages."""

    def read(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages that the run reads: all except mail that it does not have."""
        return _among(messages, self.mail)


def begin(
    tx: MailWrites,
    whose: AgentName,
    run_id: str,
    messages: Sequence[Message],
    before: RunRecord | None = None,
    answered: Sequence[str] = (),
) -> RunInput:
    """Assign messages to an agent's run, and record that the run is active; return the run's mail.

    `before` is the run as an earlier execution stored it. `answered` are the questions whose answers the run
    continues with. A run without input is not recorded as active.
    """
    now = messages_named([one.id or "" for one in messages])
    given = before.input.trigger_message_ids if before is not None and before.input is not None else ()
    earlier = [one for one in messages_named(given) if one not in now]
    agent, assigned = _assigned(tx, whose, run_id, [*earlier, *now])
    has_work = bool(assigned) or any(not messages_named([one.id or ""]) for one in messages)
    if agent is not None and has_work:
        tx.begin_run(run_id, agent.agent.id, tx.now(), answered=answered)
    if not assigned:
        return RunInput(agent=agent)
    first = assigned[0]
    return RunInput(
        agent=agent,
        mail=tuple(one.message_id for one in assigned),
        mail_thread=first.thread_id,
        conversation=f"{first.project_id}/{first.thread_id}",
    )


def take(
    tx: MailWrites, whose: AgentName, run_id: str, messages: Sequence[Message], *, told: bool
) -> tuple[Message, ...]:
    """Assign messages that came while the run was active; return those that the run reads.

    `told` says that the program got these messages, so they are assigned even if its agent has read them.
    """
    ids = messages_named([one.id or "" for one in messages])
    _, assigned = _assigned(tx, whose, run_id, ids, told=told)
    return _among(messages, [one.message_id for one in assigned])


def unread(tx: MailReads, whose: AgentName, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages that their agent has not read and nobody has recalled; nothing is written."""
    addressed = tx.agent_addressed(*whose)
    ids = messages_named([one.id or "" for one in messages])
    found = {} if addressed is None else tx.received(addressed.agent.id, ids)
    return _among(
        messages, [one for one in found if found[one].read_at is None and found[one].recalled_at is None]
    )


def _assigned(
    tx: MailWrites, whose: AgentName, run_id: str, ids: Sequence[int], *, told: bool = False
) -> tuple[AddressedAgent | None, list[Received]]:
    """Assign messages to a run; return its agent, and the messages that need the run.

    A message that the run already has stays with it: the run was cut off, and may have read the message.
    Others need the run if they are neither recalled nor read, and postroom runs their agent.
    """
    addressed = tx.agent_addressed(*whose)
    if addressed is not None:
        tx.lock_projects([addressed.project.id])
        addressed = tx.agent_addressed(*whose)  # in its state under the lock
    if addressed is None:
        return None, []
    agent = addressed.agent
    is_run = agent.retired_at is None and addressed.runner is not None
    received, assigned = tx.received(agent.id, ids) if ids else {}, list[Received]()
    for one in (received[number] for number in ids if number in received):
        is_new = one.run_id != run_id or one.ended_at is not None
        if one.recalled_at is not None or (is_new and (not is_run or (one.read_at is not None and not told))):
            continue
        assigned.append(one)
        if is_new:
            tx.put_message_run(
                MessageRun(message_id=one.message_id, agent_id=agent.id, run_id=run_id, delivered_at=tx.now())
            )
    return addressed, assigned


def _among(messages: Sequence[Message], mail: Sequence[int]) -> tuple[Message, ...]:
    """Return the messages that are mail with these ids, or not mail."""
    return tuple(one for one in messages if set(messages_named([one.id or ""])).issubset(mail))
