"""Decides which messages resume a waiting run: answers to its questions, and no others.

    asked by a tool (`ask_person`) ─▶ a decision, or a reply to the message that asks
    a permission, a budget ─────────▶ a decision only

A recipient of the message that asks the question may reply, and so may any person.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from postroom.contracts.clock import iso
from postroom.contracts.mail import Agent, Message, Recipient
from postroom.contracts.runs import RunRecord
from postroom.contracts.tools import ToolCallResume
from postroom.mail.projects import PEOPLE_SLUG, VISITOR
from postroom.mail.waking.prompts import agent_thread, lane_of
from postroom.stores.mail.access import RecordReads

ASK: Final = "ask_person"
BY_MAIL: Final = "mail"
"""Prefix of the ids of decisions made by a reply."""
_LONGEST_ANSWER: Final = 2_000
"""Maximum number of characters of a reply that are stored with its question.

The message has the complete text.
"""
_SHOWN: Final = 200
"""Number of characters of a question that are shown to senders whose messages wait for its answer."""


def takes_reply(run: RunRecord) -> bool:
    """Return whether a run waits only for questions that can be answered by a reply."""
    tickets = run.open_tickets
    return bool(tickets) and all(one.tool_name == ASK for one in tickets)


def answers(tx: RecordReads, run: RunRecord, *, reply_to: int | None, sender_id: int) -> bool:
    """Return whether a message from this sender answers a waiting run by replying to its question.

    The question is the last message that reports the run, because earlier questions have been answered. Its
    recipients may answer, and so may any person, because people answer for the operator, as they do on the
    pages.
    """
    return (
        reply_to is not None
        and takes_reply(run)
        and tx.answering_run(reply_to) == run.run_id
        and tx.tells_last(reply_to)
        and (
            any(one.agent_id == sender_id for one in tx.recipients([reply_to])[reply_to])
            or _is_person(tx, sender_id)
        )
    )


def given_by_reply(run: RunRecord, message: Message, now: int) -> tuple[tuple[str, ToolCallResume], ...]:
    """Return, in stored form, the answers that a reply gives to all open questions of a run."""
    return tuple(
        (
            ticket.tool_call_id,
            ToolCallResume(
                decision_id=f"{BY_MAIL}/{ticket.tool_call_id}/{message.id}",
                result={"text": message.body_md[:_LONGEST_ANSWER]},
                reason=message.body_md[:_LONGEST_ANSWER],
                updated_at=now,
                by=message.sender_name,
            ),
        )
        for ticket in run.open_tickets
    )


def _is_person(tx: RecordReads, agent_id: int) -> bool:
    """Return whether an agent is a person added by the operator; a visitor from a chat is not."""
    agent = tx.agents_by_id([agent_id]).get(agent_id)
    home = None if agent is None else tx.project_by_id(agent.project_id)
    return agent is not None and home is not None and home.slug == PEOPLE_SLUG and agent.program != VISITOR


def held(
    tx: RecordReads, message: Message, readers: Sequence[Recipient], agents: Mapping[int, Agent]
) -> dict[int, str]:
    """Return the recipients for whom a message has to wait, by id, with the reason to show to its sender.

    `agents` are the recipients. Only the operator, and the people who are asked, may see the text of a
    question.
    """
    threads = {
        one.agent_id: agent_thread(
            one.project_slug, one.name, lane_of(message.thread_id, agents[one.agent_id].runs_at_once)
        )
        for one in readers
    }
    waiting = tx.waiting_runs(sorted(threads.values())) if threads else {}
    found: dict[int, str] = {}
    for one in readers:
        run = waiting.get(threads[one.agent_id])
        if run is None or not run.open_tickets:
            continue
        if not answers(tx, run, reply_to=message.reply_to, sender_id=message.sender_id):
            found[one.agent_id] = (
                f"{one.name} has an open question since {iso(run.open_tickets[0].updated_at)}"
            )
    return found


def why_held(name: str, run: RunRecord) -> str:
    """Return why messages to an agent wait while its run waits."""
    tickets = run.open_tickets
    if not tickets:
        return f"{name} is about to resume with an answer"
    asked = tickets[0].question
    shown = asked if len(asked) <= _SHOWN else f"{asked[:_SHOWN]}…"
    return f"{name} has an open question: {shown}"
