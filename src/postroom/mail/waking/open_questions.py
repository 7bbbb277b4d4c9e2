"""Decides which messages resume a waiting run. Only answers to its questions do.

    asked by a tool (`ask_person`) ─▶ a decision, or a reply to the message that asks
    a permission, a budget ─────────▶ a decision only

Every recipient of the message that asks the question may answer by a reply, and so may any person. If the
question names who may answer, only they may.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from postroom.contracts.clock import iso
from postroom.contracts.errors import InvalidArgument, NotPermitted
from postroom.contracts.mail import Agent, Message, Recipient
from postroom.contracts.questions import (
    BY_MAIL,
    MAX_TEXT_LENGTH,
    NOBODY,
    Answerer,
    Given,
    answered_where,
    decision_on,
)
from postroom.contracts.quoting import one_line, quoted
from postroom.contracts.runs import RunRecord, RunWaitingTicket, agent_of
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import AskedQuestion, number_of
from postroom.mail.projects import PEOPLE_SLUG, VISITOR, full_address
from postroom.mail.waking.prompts import HAS_QUESTION, agent_thread, choose_lane
from postroom.stores.mail.access import RecordReads

ASK: Final = "ask_person"
ASKED_AGAIN: Final = "again"
"""The prefix of the ids of decisions that close a question because its agent asked it in another form."""
_SHOWN: Final = 200
"""The number of characters of a question that senders see while their messages wait for its answer."""


def ticket_of(question: AskedQuestion, now: int) -> RunWaitingTicket:
    """Return a question of an agent in the form in which its run waits for the answer."""
    return RunWaitingTicket(
        ticket_id=question.id,
        tool_call_id=question.id,
        tool_name=ASK,
        reason=question.text,
        updated_at=now,
        expires_at=None if question.timeout_ms is None else now + question.timeout_ms,
        on_timeout=question.on_timeout,
        asked=question.asked,
    )


def retired(name: str) -> str:
    """Return the reason for which the questions of a retired agent are closed."""
    return f"{name} was retired"


def takes_reply(run: RunRecord) -> bool:
    """Return whether a reply can answer all questions for which a run waits."""
    tickets = run.open_tickets
    return bool(tickets) and all(ticket.tool_name == ASK for ticket in tickets)


def answers(tx: RecordReads, run: RunRecord, *, reply_to: int | None, sender_id: int) -> bool:
    """Return whether a reply from this sender answers the question of a waiting run.

    If several messages have asked questions of the run, only the question in the last message is open,
    because the earlier ones have been answered. The recipients of that message may answer. Any person may
    answer, too, because people answer for the operator, as they do on the pages.
    """
    return (
        reply_to is not None
        and takes_reply(run)
        and tx.answering_run(reply_to) == run.run_id
        and tx.tells_last(reply_to)
        and (
            any(recipient.agent_id == sender_id for recipient in tx.recipients([reply_to])[reply_to])
            or _answerer(tx, sender_id).is_operator
        )
    )


def given_by_reply(
    tx: RecordReads, run: RunRecord, message: Message, now: int
) -> tuple[tuple[str, ToolCallResume], ...]:
    """Return the answers of a reply to all open questions of a run, in stored form.

    A reply has the same meaning as an answer on every other surface: only yes or no answers a yes-or-no
    question. Only the first 2,000 characters of a reply become the answer. The files of a reply answer a
    question that accepts a file.

    Raises:
        NotPermitted: The sender may not answer one of the questions.
        InvalidArgument: The answer is not valid for one of the questions.
    """
    by, text = _answerer(tx, message.sender_id), message.body_md.strip()[:MAX_TEXT_LENGTH]
    files = tuple(one.name for one in tx.attachments([message.id])[message.id])
    items = list[tuple[str, ToolCallResume]]()
    for ticket in run.open_tickets:
        given = Given(value=text, by=by, at=f"{BY_MAIL}/{message.id}", message=message.id, files=files)
        decided = decision_on(ticket.asked, ticket.tool_call_id, ticket.reason, given, now)
        items.append((ticket.tool_call_id, decided))
    return tuple(items)


def _answerer(tx: RecordReads, agent_id: int) -> Answerer:
    """Return the sender of a message as an answerer. A person whom the operator added counts as operator."""
    agent = tx.agents_by_id([agent_id]).get(agent_id)
    home = None if agent is None else tx.project_by_id(agent.project_id)
    if agent is None or home is None:
        return Answerer()
    is_operator = home.slug == PEOPLE_SLUG and agent.program != VISITOR
    return Answerer(name=agent.name, address=full_address(home, agent), is_operator=is_operator)


def held(
    tx: RecordReads, message: Message, readers: Sequence[Recipient], agents: Mapping[int, Agent]
) -> dict[int, str]:
    """Return why a message waits for each recipient for whom it waits, keyed by recipient id.

    The sender of the message sees the reasons. `agents` are the recipients. Only the operator and the people
    who are asked may see the text of a question.
    """
    threads = {
        recipient.agent_id: agent_thread(
            recipient.project_slug,
            recipient.name,
            choose_lane(message.thread_id, agents[recipient.agent_id].runs_at_once),
        )
        for recipient in readers
    }
    waiting = tx.waiting_runs(sorted(threads.values())) if threads else {}
    result: dict[int, str] = {}
    for recipient in readers:
        run = waiting.get(threads[recipient.agent_id])
        if run is None or not run.open_tickets:
            continue
        why = ""
        if answers(tx, run, reply_to=message.reply_to, sender_id=message.sender_id):
            try:
                given_by_reply(tx, run, message, message.created_at)
                continue
            except (NotPermitted, InvalidArgument) as error:
                why = f"; this reply does not answer it: {error.message}"
        else:
            why = _why_no_answer(tx, run, message)
        result[recipient.agent_id] = (
            f"{recipient.name} has an open question since {iso(run.open_tickets[0].updated_at)}{why}"
        )
    return result


def _why_no_answer(tx: RecordReads, run: RunRecord, message: Message) -> str:
    """Return why a message in the thread of a question is not its answer, or "" in all other threads."""
    asking = tx.report_of(run.run_id, run.updated_at)
    asks = None if asking is None else tx.messages([asking[0]])[asking[0]]
    if asks is None or (asks.project_id, asks.thread_id) != (message.project_id, message.thread_id):
        return ""
    if not takes_reply(run):
        return "; no reply answers it: people answer on the pages, in chats or with `postroom questions`"
    readers = [reader.agent_id for reader in tx.recipients([asks.id])[asks.id]]
    if message.sender_id not in readers and not _answerer(tx, message.sender_id).is_operator:
        return "; this message does not answer it: only people, and those whom it was sent to, may answer it"
    return f"; this message does not answer it: only a reply to message {asks.id} does"


def why_late(tx: RecordReads, message: Message, slug: str, name: str, *, is_for_sender: bool) -> str:
    """Return why a reply to a question of this agent does not answer it, or "" for every other message.

    The prompt of the agent and the result for the sender both contain the reason. The agent does not learn
    who answered. A sender who may not see the question does not learn the answer.
    """
    run_id = None if message.reply_to is None else tx.answering_run(message.reply_to)
    run = None if run_id is None else tx.run_of(run_id)
    if run is None or message.reply_to is None or agent_of(run.thread_id) != (slug, name):
        return ""
    asks = tx.messages([message.reply_to]).get(message.reply_to)
    if asks is None or HAS_QUESTION.format(name=name) not in asks.body_md:
        return ""

    def is_asked(ticket: RunWaitingTicket) -> bool:
        return ticket.updated_at <= asks.created_at and f"- {one_line(ticket.reason)}" in asks.body_md

    if any(map(is_asked, run.open_tickets)):
        return "" if is_for_sender else "the question is open, and no reply by this sender answers it"
    closed = [answered for answered in run.answered if is_asked(answered.ticket)]
    if any(one.decision.decision_id.startswith(f"{BY_MAIL}/{message.id}/") for one in closed):
        return ""  # this message is itself the answer
    if not closed:  # an older release ended the run, and kept no record of its questions
        return "" if run.is_open else "the question was withdrawn, because its run ended without an answer"
    by = _answerer(tx, message.sender_id)
    is_reader = any(one.agent_id == message.sender_id for one in tx.recipients([asks.id])[asks.id])
    last, told = max(one.ticket.updated_at for one in closed), list[str]()
    for one in closed:
        if one.ticket.updated_at < last:
            continue  # the run has asked the same question again
        decision, number = one.decision, number_of(run.run_id, one.ticket)
        if is_for_sender and not (is_reader or by.is_operator):
            told.append(f"question {number} is closed")
            continue
        word = {True: "yes", False: "no"}.get(decision.approved)  # type: ignore[arg-type]
        answer = ": ".join(filter(None, (word, quoted(decision.reason) if decision.reason else "")))
        if decision.by == NOBODY:
            told.append(f"question {number} was closed: {answer}")
            continue
        who = ", by " + " ".join(
            filter(None, (one_line(decision.by or "somebody"), answered_where(decision)))
        )
        told.append(f"question {number} was already answered: {answer}{who if is_for_sender else ''}")
    return "; ".join(told)


def why_held(name: str, run: RunRecord) -> str:
    """Return the text that tells a sender why messages to an agent wait while its run waits."""
    tickets = run.open_tickets
    if not tickets:
        return f"{name} is about to resume with an answer"
    question = tickets[0].question
    shown = question if len(question) <= _SHOWN else f"{question[:_SHOWN]}…"
    return f"{name} has an open question: {shown}"
