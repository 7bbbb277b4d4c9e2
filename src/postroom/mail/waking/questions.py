"""Questions of an active run to people, and the messages that answer them.

The messages that resume a waiting run: answers to its questions, and no others.

    asked by a tool (`ask_person`) ─▶ a decision, or a reply to the message that asks
    a permission, a budget ─────────▶ a decision only

A recipient of the message that asks may reply, and so may every person.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, TypedDict

from postroom.contracts.clock import iso
from postroom.contracts.errors import IllegalTransition, InvalidArgument
from postroom.contracts.mail import Agent, Message, Recipient
from postroom.contracts.runs import OnTimeout, RunRecord
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import AskedQuestion, question_number
from postroom.mail.commands import AskPerson
from postroom.mail.context import WriteContext
from postroom.mail.identity import acting_active
from postroom.mail.projects import PEOPLE_SLUG, VISITOR
from postroom.mail.waking.prompts import agent_thread, lane_of
from postroom.stores.mail.access import RecordReads

ASK: Final = "ask_person"
BY_MAIL: Final = "mail"
"""Prefix of the ids of decisions made by a reply."""
_LONGEST_ANSWER: Final = 2_000
"""Characters of a reply that are stored with its question; the message has all of them."""
_SHOWN: Final = 200
"""Characters of a question that are shown to senders whose messages wait for its answer."""


def takes_reply(run: RunRecord) -> bool:
    """Return whether a run waits only for questions that a reply can answer."""
    tickets = run.open_tickets
    return bool(tickets) and all(one.tool_name == ASK for one in tickets)


def answers(tx: RecordReads, run: RunRecord, *, reply_to: int | None, sender_id: int) -> bool:
    """Return whether a message of this sender answers a waiting run: a reply to the message that asks.

    The message that asks is the last one that reports the run, because earlier questions have answers. Its
    recipients may answer, and so may every person: people answer for the operator, as on the pages.
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
    """Return the answers that a reply gives to all open questions of a run, in stored form."""
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
    """Return whether an agent is a person whom the operator added; a visitor of a chat is not."""
    agent = tx.agents_by_id([agent_id]).get(agent_id)
    home = None if agent is None else tx.project_by_id(agent.project_id)
    return agent is not None and home is not None and home.slug == PEOPLE_SLUG and agent.program != VISITOR


def held(
    tx: RecordReads, message: Message, readers: Sequence[Recipient], agents: Mapping[int, Agent]
) -> dict[int, str]:
    """Return the recipients by id for whom a message waits, with the reason for its sender.

    `agents` are the recipients. The text of a question is only for those it asks, and for the operator.
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


_OWN_RUN = "give the run's own id from POSTROOM_RUN of the program that the server started"


class AskedView(TypedDict):
    """A stored question. It is asked when the run has ended its turn; end it now."""

    question_id: str
    asked: bool


def ask_person(context: WriteContext, asked: AskPerson) -> AskedView:
    """Store a question to a person for the end of the run's turn.

    Raises:
        IllegalTransition: The agent has no such active run.
        InvalidArgument: A timeout and its effect are not given together, or no run is named and the caller is
            none.
    """
    _, agent = acting_active(context, asked.project_key, asked.agent_name)
    if (asked.timeout_seconds is None) != (asked.on_timeout == "wait"):
        raise InvalidArgument(
            "timeout_seconds and an on_timeout other than 'wait' require each other",
            value=asked.on_timeout,
            remedy="give both, or neither to wait without a timeout",
        )
    run_id = _run_of(context, asked)
    question_id = _number(context, run_id, asked.question)
    _keep(context, asked, agent, run_id, question_id)
    return {"question_id": question_id, "asked": True}


def ask_person_again(context: WriteContext, asked: AskPerson, kept: AskedView) -> None:
    """Restore the question behind an answer that is stored under a key.

    A server's death or a failure ends an attempt and removes its question. The next attempt repeats the call
    and gets the stored answer, so the question must exist under the same id. A question that is open, or has
    an answer, is not asked again.

    Raises:
        IllegalTransition: The question does not exist, and the agent has no such active run.
    """
    run_id = _run_of(context, asked)
    if not context.tx.has_asked(run_id, kept["question_id"]):
        _, agent = acting_active(context, asked.project_key, asked.agent_name)
        _keep(context, asked, agent, run_id, kept["question_id"])


def _run_of(context: WriteContext, asked: AskPerson) -> str:
    run_id = asked.run_id or context.caller.run_id
    if run_id is None:
        raise InvalidArgument(
            "run_id is required, because the call has no run's token", value=None, remedy=_OWN_RUN
        )
    return run_id


def _keep(context: WriteContext, asked: AskPerson, agent: Agent, run_id: str, question_id: str) -> None:
    """Store a question of an active run."""
    question = AskedQuestion(
        id=question_id,
        text=asked.question,
        timeout_ms=None if asked.timeout_seconds is None else asked.timeout_seconds * 1_000,
        on_timeout=OnTimeout(asked.on_timeout),
    )
    if not context.tx.ask(run_id, agent.id, question, context.now):
        raise IllegalTransition(f"{agent.name} has no active run {run_id!r}", value=run_id, remedy=_OWN_RUN)


def _number(context: WriteContext, run_id: str, text: str) -> str:
    """Return the number of the question: the earlier one if the active run has already asked it."""
    before = {one.text: one.id for one in context.tx.questions(run_id)}
    numbers = (question_number(run_id, text, context.now, salt) for salt in count())
    return before.get(text) or next(one for one in numbers if one not in before.values())
