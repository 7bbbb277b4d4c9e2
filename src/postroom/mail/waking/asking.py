"""Questions of active runs to people. A question is stored at once, and asked at the end of the turn."""

from collections.abc import Sequence
from itertools import count
from typing import Final, Literal, NotRequired, TypedDict

from postroom.contracts.errors import IllegalTransition, InvalidArgument, UnknownAgent
from postroom.contracts.mail import Agent, Project
from postroom.contracts.messages import Boundary, DeliveryMode, Message
from postroom.contracts.questions import ASKED_AGAIN, OPERATOR, YES_OR_NO, QuestionKind, asked_for
from postroom.contracts.quoting import is_blank
from postroom.contracts.records import replace
from postroom.contracts.runners import MAX_RUNS_AT_ONCE
from postroom.contracts.runs import AnsweredTicket, OnTimeout, RunWaitingTicket
from postroom.contracts.waking import AskedQuestion, not_replaced, question_number
from postroom.mail.commands import AskPerson
from postroom.mail.context import WriteContext
from postroom.mail.identity import acting, acting_active, find_address, person_remedy
from postroom.mail.projects import PERSONS, full_address
from postroom.mail.waking.open_questions import ASK, retired
from postroom.mail.waking.prompts import (
    ASKED,
    ASKING_LANES,
    MAX_ASKED,
    agent_thread,
    asking_thread,
    decision_told,
    messages_named,
)

STARTER: Final = "starter"
"""The address of the person or agent who wrote the message that started the run."""
_NO_SERVER = "only a running server can ask questions"
_START = "start it: `postroom up`"
_OWN_RUN = "pass the id of your run, which is in the environment variable POSTROOM_RUN"


class AskedView(TypedDict):
    """A question to a person, and its state.

    A new question is shown to the person when the run ends its turn. `answer` is present if the question was
    already answered. A closed question never gets an answer.
    """

    question_id: str
    asked: bool
    """Whether this call asked the question."""
    state: NotRequired[Literal["open", "answered", "closed"]]
    """The state of a question that was asked before."""
    answer: NotRequired[str]


def ask_person(context: WriteContext, asked: AskPerson) -> AskedView:
    """Store a question to a person.

    The person sees the question when the run ends its turn.

    Raises:
        IllegalTransition: The agent has no such active run.
        InvalidArgument: Only one of the timeout and its effect is set, the kind of answer is invalid, `to`
            names an agent that could not answer, or there is no run.
        UnknownAgent: A person or agent who may or may not answer does not exist.
    """
    home, agent = acting_active(context, asked.project_key, asked.agent_name)
    if (asked.timeout_seconds is None) != (asked.on_timeout == "wait"):
        raise InvalidArgument(
            "timeout_seconds and an on_timeout other than 'wait' can only be used together",
            value=asked.on_timeout,
            remedy="pass both; or pass neither, to wait without a timeout",
        )
    if _is_outside(context, asked, agent):
        return _ask_outside(context, home, agent, _question(context, asked, home, agent, ""))
    run_id = _find_run(context, asked)
    question = _question(context, asked, home, agent, run_id)
    before = context.tx.questions(run_id)
    for item in not_replaced(before):
        if (item.text, item.asked) == (question.text, question.asked):
            _keep(context, agent, run_id, item, [])
            return {"question_id": item.id, "asked": False, "state": "open"}
    former = _former(context, run_id, question.text)
    for ticket, has_answer in former:
        if ticket.asked == question.asked and not ticket.is_over(context.now):
            if not has_answer:
                _keep(context, agent, run_id, replace(question, id=ticket.ticket_id), before, is_open=True)
            state: Literal["open", "answered"] = "answered" if has_answer else "open"
            return {"question_id": ticket.ticket_id, "asked": False, "state": state}
    numbers = (question_number(run_id, question.text, context.now, salt) for salt in count())
    taken = [*(item.id for item in before), *(ticket.ticket_id for ticket, _ in former)]
    number = next(number for number in numbers if number not in taken)
    _keep(context, agent, run_id, replace(question, id=number), before)
    replaced = [ticket for ticket, has_answer in former if not has_answer]
    if replaced and (run := context.tx.run_of(run_id)) is not None:  # nobody may answer these questions now
        closed = [AnsweredTicket.asked_again(one, agent.name, number, now=context.now) for one in replaced]
        context.tx.put_questions(replace(run, answered=(*run.answered, *closed)))
        context.tx.note_withdrawn(run_id, agent.id, [one.ticket_id for one in replaced], now=context.now)
    return {"question_id": number, "asked": True}


def _former(context: WriteContext, run_id: str, text: str) -> list[tuple[RunWaitingTicket, bool]]:
    """Return the questions with a text that earlier turns of a run have left open.

    With each question comes whether an answer to it has arrived in this turn.

    Raises:
        ThreadsNeeded: The change has not locked the thread of the run.
    """
    run = context.tx.run_of(run_id)
    asked = run.waiting.tickets if run is not None and run.waiting is not None else ()
    tickets = [ticket for ticket in asked if ticket.tool_name == ASK and ticket.reason == text]
    if run is None or not tickets:
        return []
    if context.waking is None:
        raise IllegalTransition(_NO_SERVER, value=text, remedy=_START)
    arrived = context.waking.arrived(run)
    former = [(ticket, ticket.tool_call_id in arrived) for ticket in tickets]
    return [(ticket, has_answer) for ticket, has_answer in former if has_answer or ticket in run.open_tickets]


def ask_person_again(context: WriteContext, asked: AskPerson, kept: AskedView) -> AskedView:
    """Return the state of a question that an earlier call with the same key asked.

    If the earlier attempt failed before anybody saw the question, the question is asked again.

    Raises:
        IllegalTransition: The question does not exist, and the agent has no such active run.
    """
    home, agent = acting(context, asked.project_key, asked.agent_name)
    number, run_id = kept["question_id"], ""
    if _is_outside(context, asked, agent):  # this question does not belong to an attempt
        threads = _threads(home, agent, number)
        run = context.tx.run_begun_by(threads, f"{ASKED}{number}")
        is_open = run is not None and run.is_open
    else:
        run_id = _find_run(context, asked)
        run, is_open = context.tx.run_of(run_id), True
    before = context.tx.questions(run_id) if run_id else []
    if number in [item.id for item in before]:
        is_open = number in [item.id for item in not_replaced(before)]
        return {"question_id": number, "asked": False, "state": "open" if is_open else "closed"}
    answers, tickets = (run.answered, run.open_tickets) if run is not None else ((), ())
    seen = [*tickets, *(one.ticket for one in answers if not one.is_unseen)]
    for answered in answers:
        ticket = answered.ticket
        if number not in (ticket.tool_call_id, ticket.ticket_id):
            continue
        is_replaced = any(one.reason == ticket.reason and one.updated_at >= ticket.updated_at for one in seen)
        if is_replaced or not answered.is_unseen:
            arrived = context.waking.arrived(run) if run_id and run is not None and context.waking else ()
            is_delivered = bool(run_id) and ticket.tool_call_id not in arrived
            return _ended(answered, is_delivered=is_delivered or not is_open)
    if run_id and number not in [ticket.tool_call_id for ticket in tickets]:
        question = _question(context, asked, home, agent, run_id)
        _keep(context, agent, run_id, replace(question, id=number), before)
        return {"question_id": number, "asked": True}
    return {"question_id": number, "asked": False, "state": "open" if is_open else "closed"}


def _ended(answered: AnsweredTicket, *, is_delivered: bool) -> AskedView:
    number = answered.ticket.ticket_id
    if not answered.is_answer:
        return {"question_id": number, "asked": False, "state": "closed"}
    if not is_delivered:
        return {"question_id": number, "asked": False, "state": "answered"}
    answer = decision_told(answered.decision)
    return {"question_id": number, "asked": False, "state": "answered", "answer": answer}


def _find_run(context: WriteContext, asked: AskPerson) -> str:
    run_id = asked.run_id or context.caller.run_id
    if run_id is None:
        raise InvalidArgument(
            "run_id is required, because an agent with a runner asks only in its runs, and the call was not "
            "made with a run's token",
            value=None,
            remedy=_OWN_RUN,
        )
    return run_id


def _is_outside(context: WriteContext, asked: AskPerson, agent: Agent) -> bool:
    return not (asked.run_id or context.caller.run_id) and context.tx.runner(agent.id) is None


def _ask_outside(context: WriteContext, home: Project, agent: Agent, question: AskedQuestion) -> AskedView:
    """Store a run that waits for the answer to the question and sends the answer to the agent by mail.

    Raises:
        IllegalTransition: This process executes no runs, the agent has too many open questions, or the former
            question cannot be closed.
    """
    if context.waking is None:
        raise IllegalTransition(_NO_SERVER, value=question.text, remedy=_START)
    number = question_number(agent.id, question.text, context.now, context.dice.random())
    threads = _threads(home, agent, number)
    context.tx.lock_projects([home.id])  # the same question, asked at the same time, is one question
    asking = context.tx.open_runs(threads)
    free = [thread for thread in threads if thread not in asking]
    same = [
        (run, ticket)
        for run in asking.values()
        for ticket in run.open_tickets
        if ticket.reason == question.text
    ]
    for _, ticket in same:
        if ticket.asked == question.asked:
            return {"question_id": ticket.ticket_id, "asked": False, "state": "open"}
    for answered in (answered for run in asking.values() for answered in run.answered):
        before = answered.ticket.reason, answered.ticket.asked
        if before == (question.text, question.asked) and answered.is_answer:
            return _ended(answered, is_delivered=False)
    if not same and sum(bool(run.open_tickets) for run in asking.values()) >= MAX_ASKED:
        raise IllegalTransition(
            f"{agent.name} already has {MAX_ASKED} open questions, the maximum",
            value=question.text,
            remedy="wait until some are answered; people see them with `postroom questions list`",
        )
    if not free:
        raise IllegalTransition(
            f"too many answers to earlier questions of {agent.name} are not delivered yet",
            value=question.text,
            remedy="wait until some of these answers have come by mail, then ask again",
        )
    context.waking.ask(free[0], agent, replace(question, id=number))
    for run, ticket in same:  # the action or the kind of answer differs, so nobody may answer this question
        closed = AnsweredTicket.asked_again(ticket, agent.name, number, now=context.now).decision
        told = Message.user(closed.reason or "", id=f"{ASKED_AGAIN}-{number}")
        mode = DeliveryMode(
            boundary=Boundary.NEXT_STEP,
            group=None,
            starts_run=True,
            resumes=False,
            target_run_id=run.run_id,
        )
        if not context.waking.accept(run.thread_id, told, mode, [(ticket.tool_call_id, closed)]):
            raise IllegalTransition(
                f"question {ticket.ticket_id}, which you asked before, cannot be closed at this moment",
                value=question.text,
                remedy="ask again",
            )
    return {"question_id": number, "asked": True}


def close_questions(context: WriteContext, home: Project, agent: Agent) -> None:
    """Cancel the waiting runs of a retired agent, which closes the agent's open questions.

    A run that already has an answer continues.

    Raises:
        ThreadsNeeded: The change must be repeated with the threads of these runs.
    """
    if context.waking is None:
        return
    lanes = [agent_thread(home.slug, agent.name, lane) for lane in range(MAX_RUNS_AT_ONCE)]
    waiting = context.tx.waiting_runs([*lanes, *_threads(home, agent, "0")])
    idle = {
        thread: run
        for thread, run in waiting.items()
        if run.open_tickets and run.waiting and run.waiting.since_dispatch_id == run.dispatch_id
    }
    context.waking.accept.cancel_all(idle, retired(agent.name))


def _threads(home: Project, agent: Agent, number: str) -> list[str]:
    lanes = [(int(number[0], 16) + place) % ASKING_LANES for place in range(ASKING_LANES)]
    return [asking_thread(home.slug, agent.name, lane) for lane in lanes]


def _keep(
    context: WriteContext,
    agent: Agent,
    run_id: str,
    question: AskedQuestion,
    before: Sequence[AskedQuestion],
    *,
    is_open: bool = False,
) -> None:
    asked_at = max([context.now, *(item.asked_at + 1 for item in before)])
    question = replace(question, asked_at=asked_at)
    if not context.tx.ask(run_id, agent.id, question, context.now, is_open=is_open):
        raise IllegalTransition(f"{agent.name} has no active run {run_id!r}", value=run_id, remedy=_OWN_RUN)
    # Nobody has seen the former question yet, because the run asks only when it ends its turn.
    replaced = [item.id for item in not_replaced(before) if item.text == question.text]
    context.tx.note_withdrawn(run_id, agent.id, replaced, now=context.now)


def _question(
    context: WriteContext, asked: AskPerson, home: Project, agent: Agent, run_id: str
) -> AskedQuestion:
    if is_blank(asked.question):
        raise InvalidArgument("the question has no text", value=asked.question[:80], remedy="write it")
    kind = asked_for(
        choices=asked.choices,
        wants_text=asked.text,
        wants_file=asked.file,
        form=asked.form,
        action=asked.action,
        default=asked.default or None,
    )
    if (asked.on_timeout == "default") != bool(asked.default):
        raise InvalidArgument(
            "default and on_timeout 'default' can only be used together",
            value=asked.default,
            remedy="pass both",
        )
    if asked.on_timeout == "no" and kind.kind is not QuestionKind.YES_NO:
        raise InvalidArgument(
            "on_timeout 'no' works only for a yes or no question",
            value=asked.on_timeout,
            remedy="use on_timeout 'cancel', or pass on_timeout 'default' and a value for default",
        )
    if kind.kind is QuestionKind.FILE and not _starters(context, run_id):
        raise InvalidArgument(
            "no mail started this run, so no message asks its question and nobody can reply with a file",
            value=asked.question[:80],
            remedy="ask for a text, such as the path of the file",
        )
    to = tuple(_address(context, value, home, run_id) for value in asked.to)
    not_by = tuple(_address(context, value, home, run_id) for value in asked.not_by)
    if to and set(to) <= {*not_by, full_address(home, agent)}:
        raise InvalidArgument(
            "nobody in `to` may answer: each name is your own or also in `not_by`",
            value=asked.to,
            remedy="add somebody else to `to`",
        )
    agents = [address for address in to if address != OPERATOR and not address.startswith("human:")]
    if agents and not _starters(context, run_id):
        started = "no mail started this run" if run_id else "this question is asked outside a run"
        raise InvalidArgument(
            f"{', '.join(agents)} cannot answer: an agent answers only by replying to the mail of a run that "
            f"mail started, and {started}",
            value=agents,
            remedy="in `to`, name people (human:NAME) or operator; starter works in a run that mail started",
        )
    return AskedQuestion(
        id="",
        text=asked.question,
        timeout_ms=None if asked.timeout_seconds is None else asked.timeout_seconds * 1_000,
        on_timeout=OnTimeout.NO if asked.on_timeout == "default" else OnTimeout(asked.on_timeout),
        # Agents ask "EUR or USD?" without a kind, and people answer in words. Only an action needs a yes.
        asked=replace(kind, to=to, not_by=not_by, in_words=kind == YES_OR_NO),
    )


def _starters(context: WriteContext, run_id: str) -> list[int]:
    run = context.tx.run_of(run_id) if run_id else None
    return messages_named(run.input.trigger_message_ids if run and run.input else ())


def _address(context: WriteContext, written: str, home: Project, run_id: str) -> str:
    """Return the full address of a person or agent that a question names.

    Raises:
        UnknownAgent: Nobody has this address.
        InvalidArgument: The address is `starter`, but no message started the run.
    """
    if written == OPERATOR:
        return written
    if written != STARTER:
        try:
            return full_address(*find_address(context, home, written))
        except UnknownAgent as error:
            if written.startswith(PERSONS) or "@" in written:
                raise
            remedy = person_remedy(context, written) or (
                "name a person (human:NAME), operator or starter, or leave out `to`: then anyone may answer"
            )
            raise UnknownAgent(error.message, value=written, remedy=remedy, details=error.details) from error
    numbers = _starters(context, run_id)
    messages = context.tx.messages(numbers[:1])
    if not messages:
        raise InvalidArgument(
            "no message started this run, so it has no starter",
            value=written,
            remedy="write the person's name: human:NAME",
        )
    sender = context.tx.agents_by_id([messages[numbers[0]].sender_id])[messages[numbers[0]].sender_id]
    place = context.tx.project_by_id(sender.project_id)
    return full_address(place or home, sender)
