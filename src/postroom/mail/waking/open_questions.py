"""Decides which messages resume a waiting run. Only answers to its questions do.

    asked by a tool (`ask_person`) ─▶ a decision, or a reply to the message that asks
    a permission, a budget ─────────▶ a decision only

Every recipient of the message that asks the question may answer by a reply, and so may any person. If the
question names who may answer, only they may.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from postroom.contracts.clock import iso
from postroom.contracts.errors import InvalidArgument, NotPermitted, StaleDecision
from postroom.contracts.mail import Agent, Message, Recipient
from postroom.contracts.plain_answers import unanswered
from postroom.contracts.questions import (
    BY_MAIL,
    MAX_TEXT_LENGTH,
    NOBODY,
    UNSEEN,
    Answerer,
    Given,
    answered_where,
    decision_on,
    form_in_words,
)
from postroom.contracts.quoting import one_line, quoted
from postroom.contracts.records import replace
from postroom.contracts.runs import AnsweredTicket, RunRecord, RunWaitingTicket, agent_of, asked_again
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.contracts.waking import AskedQuestion, number_of
from postroom.mail.projects import PEOPLE_SLUG, VISITOR, full_address
from postroom.mail.waking.prompts import HAS_QUESTION, agent_thread, choose_lane
from postroom.stores.mail.access import MailWrites, RecordReads

ASK: Final = "ask_person"
BEFORE_SEEN: Final = "before anybody saw the question"
_SHOWN: Final = 200
"""The number of characters of a question that senders see while their messages wait for its answer."""


def ticket_of(question: AskedQuestion, now: int) -> RunWaitingTicket:
    """Return the ticket with which a run waits for the answer to an agent's question."""
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


def close_unseen(
    tx: MailWrites, run_id: str, agent_id: int, asked: Sequence[AskedQuestion], why: str
) -> None:
    """Record in a run why the questions of a failed turn were closed before anybody saw them.

    `asked` contains all questions of the turn in order, including replaced questions.
    """
    run = tx.run_of(run_id)
    if run is None:
        return
    name, now = tx.agents_by_id([agent_id])[agent_id].name, tx.now()
    numbers = {question.id for question in asked}
    before = [one for one in run.answered if not (one.is_unseen and one.ticket.ticket_id in numbers)]
    tickets = [*(one.ticket for one in before), *(run.waiting.tickets if run.waiting is not None else ())]
    later, closed = dict[str, AskedQuestion](), list[AnsweredTicket]()
    for question in reversed(asked):
        newer, later[question.text] = later.get(question.text), question
        if question.id in [ticket.ticket_id for ticket in tickets]:
            continue
        decision = ToolCallResume(
            decision_id=f"{UNSEEN}/{question.id}",
            action=ResumeDecisionAction.CANCEL,
            reason=why if newer is None else asked_again(name, newer.id),
            updated_at=max(now, question.asked_at) if newer is None else newer.asked_at,
            by=NOBODY,
        )
        ticket = replace(ticket_of(question, question.asked_at), expires_at=None)
        closed.append(AnsweredTicket(ticket=ticket, decision=decision))
        if newer is None:
            tx.note_withdrawn(run_id, agent_id, [question.id], now=now)
    if (answered := (*before, *reversed(closed))) != run.answered:
        tx.put_questions(replace(run, answered=answered))


def retired(name: str) -> str:
    """Return the reason for closing the questions of a retired agent."""
    return f"{name} was retired"


def takes_reply(run: RunRecord) -> bool:
    """Return whether a reply by mail can answer all questions for which a run waits."""
    tickets = run.open_tickets
    return bool(tickets) and all(ticket.tool_name == ASK for ticket in tickets)


def answers(tx: RecordReads, run: RunRecord, *, reply_to: int | None, sender_id: int) -> bool:
    """Return whether a reply by mail answers the open questions of a run.

    The recipients of the questions' message may answer, and so may any person.
    """
    return (
        reply_to is not None
        and takes_reply(run)
        and tx.newest_report(run.run_id) == reply_to
        and (
            any(recipient.agent_id == sender_id for recipient in tx.recipients([reply_to])[reply_to])
            or _answerer(tx, sender_id).is_operator
        )
    )


def given_by_reply(
    tx: RecordReads, run: RunRecord, message: Message, now: int
) -> tuple[tuple[str, ToolCallResume], ...]:
    """Return the answers that a reply by mail gives to all open questions of a run.

    Only the first 2,000 characters of the reply count. The files of the reply answer a question that accepts
    a file.

    Raises:
        NotPermitted: The sender may not answer one of the questions.
        InvalidArgument: The answer is not valid for one of the questions.
        StaleDecision: One of the questions timed out, and the run no longer waits for an answer.
    """
    by, text = _answerer(tx, message.sender_id), message.body_md.strip()[:MAX_TEXT_LENGTH]
    files = tuple(one.name for one in tx.attachments([message.id])[message.id])
    items = list[tuple[str, ToolCallResume]]()
    for ticket in run.open_tickets:
        given = Given(value=text, by=by, at=f"{BY_MAIL}/{message.id}", message=message.id, files=files)
        decided = decision_on(ticket.asked, ticket.tool_call_id, ticket.reason, given, now)
        run.refuse_late(ticket, decided, now=now)
        items.append((ticket.tool_call_id, decided))
    return tuple(items)


def _answerer(tx: RecordReads, agent_id: int) -> Answerer:
    agent = tx.agents_by_id([agent_id]).get(agent_id)
    home = None if agent is None else tx.project_by_id(agent.project_id)
    if agent is None or home is None:
        return Answerer()
    is_operator = home.slug == PEOPLE_SLUG and agent.program != VISITOR
    return Answerer(name=agent.name, address=full_address(home, agent), is_operator=is_operator)


def held(
    tx: RecordReads, message: Message, readers: Sequence[Recipient], agents: Mapping[int, Agent]
) -> tuple[dict[int, str], dict[int, list[str]]]:
    """Return the reasons why recipients cannot read a message yet, and the questions that it answers.

    Both are keyed by recipient id. The questions are the numbers of open questions.
    """
    threads = {
        recipient.agent_id: agent_thread(
            recipient.project_slug,
            recipient.name,
            choose_lane(message.thread_id, agents[recipient.agent_id].runs_at_once),
        )
        for recipient in readers
    }
    # A run that works with one answer still waits for the others.
    runs = tx.open_runs(sorted(threads.values())) if threads else {}
    reasons, answered = dict[int, str](), dict[int, list[str]]()
    for recipient in readers:
        run = runs.get(threads[recipient.agent_id])
        if run is None or not run.open_tickets:
            continue
        why = ""
        if answers(tx, run, reply_to=message.reply_to, sender_id=message.sender_id):
            try:
                given_by_reply(tx, run, message, message.created_at)
                answered[recipient.agent_id] = [number_of(run.run_id, one) for one in run.open_tickets]
                continue
            except (NotPermitted, InvalidArgument, StaleDecision) as error:
                why = f"; this reply does not answer it: {error.message}"
        else:
            why = _why_no_answer(tx, run, message)
        reasons[recipient.agent_id] = (
            f"{recipient.name} has an open question since {iso(run.open_tickets[0].updated_at)}{why}"
        )
    return reasons, answered


def _why_no_answer(tx: RecordReads, run: RunRecord, message: Message) -> str:
    asking = tx.newest_report(run.run_id)
    asks = None if asking is None else tx.messages([asking])[asking]
    if asks is None or (asks.project_id, asks.thread_id) != (message.project_id, message.thread_id):
        return ""
    if not takes_reply(run):
        return "; no reply answers it: people answer on the pages, in chats or with `postroom questions`"
    readers = [reader.agent_id for reader in tx.recipients([asks.id])[asks.id]]
    if message.sender_id not in readers and not _answerer(tx, message.sender_id).is_operator:
        return "; this message does not answer it: only people, and those whom it was sent to, may answer it"
    return f"; this message does not answer it: only a reply to message {asks.id} does"


def answered_by(tx: RecordReads, message: Message, whose: tuple[str, str] | None = None) -> list[str]:
    """Return the numbers of the questions to which a message is the answer.

    `whose` is the project and name of an agent, and leaves out the questions of other agents.
    """
    run_id = None if message.reply_to is None else tx.answering_run(message.reply_to)
    run = None if run_id is None else tx.run_of(run_id)
    sign = f"{BY_MAIL}/{message.id}/"
    if run is None or whose not in (None, agent_of(run.thread_id)):
        return []
    return [
        number_of(run.run_id, one.ticket) for one in run.answered if one.decision.decision_id.startswith(sign)
    ]


def why_late(tx: RecordReads, message: Message, slug: str, name: str, *, is_for_sender: bool) -> str:
    """Return why a reply to an agent's question does not answer it; return "" if there is no such reason.

    The reason reveals the answer only to a sender who may see the question.
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
        answer = ": ".join(
            filter(None, (word, quoted(form_in_words(decision.reason)) if decision.reason else ""))
        )
        if one.is_answer and decision.by == NOBODY:
            means = unanswered(decision.approved, f" question {number}")
            told.append(f"{means[0].lower()}{means[1:]}: {quoted(decision.reason or '')}")
            continue
        if decision.by == NOBODY:
            told.append(f"question {number} was closed: {answer}")
            continue
        who = ", by " + " ".join(
            filter(None, (one_line(decision.by or "somebody"), answered_where(decision)))
        )
        told.append(f"question {number} was already answered: {answer}{who if is_for_sender else ''}")
    return "; ".join(told)


def why_held(name: str, run: RunRecord) -> str:
    """Return the text that tells a sender why messages wait until the agent's run has an answer."""
    tickets = run.open_tickets
    if not tickets:
        return f"{name} is about to resume with an answer"
    question = tickets[0].question
    shown = question if len(question) <= _SHOWN else f"{question[:_SHOWN]}…"
    return f"{name} has an open question: {shown}"
