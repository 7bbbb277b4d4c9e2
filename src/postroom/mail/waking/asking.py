"""Questions of active runs to people. A question is stored at once, and asked at the end of the turn."""

from contextlib import suppress
from itertools import count
from typing import Final, Literal, NotRequired, TypedDict

from postroom.contracts.errors import IllegalTransition, InvalidArgument, UnknownAgent
from postroom.contracts.mail import Agent, Project
from postroom.contracts.messages import Boundary, DeliveryMode, Message
from postroom.contracts.plain_answers import HUMAN
from postroom.contracts.questions import NOBODY, OPERATOR, YES_OR_NO, QuestionKind, asked_for
from postroom.contracts.records import replace
from postroom.contracts.runners import MAX_RUNS_AT_ONCE
from postroom.contracts.runs import AnsweredTicket, OnTimeout, RunWaitingTicket
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.contracts.waking import AskedQuestion, question_number
from postroom.mail.commands import AskPerson
from postroom.mail.context import WriteContext
from postroom.mail.identity import acting, acting_active, find_address, find_person
from postroom.mail.projects import PERSONS, full_address
from postroom.mail.waking.open_questions import ASKED_AGAIN, retired
from postroom.mail.waking.prompts import (
    ASKED,
    ASKING_LANES,
    agent_thread,
    asking_thread,
    decision_told,
    messages_named,
)

STARTER: Final = "starter"
"""The address of the person or agent who wrote the message that started the run."""
_OWN_RUN = "pass the id of your run, which is in the environment variable POSTROOM_RUN"


class AskedView(TypedDict):
    """A stored question. The question is asked when the run has ended its turn, so end the turn now.

    If the question was asked before, `asked` is false, and `state` states whether it is still open. If it was
    answered, `answer` is the answer: continue with it. Without `answer`, the person can still withdraw the
    answer, which comes by mail. A closed question gets no answer any more.
    """

    question_id: str
    asked: bool
    """Whether this call asked the question."""
    state: NotRequired[Literal["open", "answered", "closed"]]
    """The state of a question that was asked before."""
    answer: NotRequired[str]


def ask_person(context: WriteContext, asked: AskPerson) -> AskedView:
    """Store a question to a person. The question is asked when the run ends its turn.

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
    same = [item for item in before if item.text == question.text]
    for item in same:
        if item.asked == question.asked:
            question = replace(question, id=item.id)
        else:  # nobody has seen the question yet, because it is shown only after the turn
            context.tx.unask(run_id, agent.id, item.id, context.now)
    is_new = not question.id
    if is_new:
        numbers = (question_number(run_id, question.text, context.now, salt) for salt in count())
        taken = [question.id for question in before]
        question = replace(question, id=next(number for number in numbers if number not in taken))
    _keep(context, agent, run_id, question)
    if is_new:
        return {"question_id": question.id, "asked": True}
    return {"question_id": question.id, "asked": False, "state": "open"}


def ask_person_again(context: WriteContext, asked: AskPerson, kept: AskedView) -> AskedView:
    """Restore the question of a call whose result is stored under an idempotency key, and return the result.

    If the server crashes or the attempt fails, the question is removed with the attempt. The next attempt
    repeats the call and gets the stored result, so the question must exist again under the same id. A
    question that is open or answered is not asked again. The result contains the state and the answer of such
    a question.

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
    for answered in run.answered if run is not None else ():
        if number in (answered.ticket.tool_call_id, answered.ticket.ticket_id):
            return _ended(answered, is_delivered=bool(run_id) or not is_open)
    if run_id and not context.tx.has_asked(run_id, number):
        question = _question(context, asked, home, agent, run_id)
        _keep(context, agent, run_id, replace(question, id=number))
        return {"question_id": number, "asked": True}
    return {"question_id": number, "asked": False, "state": "open" if is_open else "closed"}


def _ended(answered: AnsweredTicket, *, is_delivered: bool) -> AskedView:
    """Return how a question ended, with its answer if nobody can withdraw the answer any more."""
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
            "run_id is required, because the call was not made with a run's token",
            value=None,
            remedy=_OWN_RUN,
        )
    return run_id


def _is_outside(context: WriteContext, asked: AskPerson, agent: Agent) -> bool:
    """Return whether a program that a person has started asks, and not a run."""
    return not (asked.run_id or context.caller.run_id) and context.tx.runner(agent.id) is None


def _ask_outside(context: WriteContext, home: Project, agent: Agent, question: AskedQuestion) -> AskedView:
    """Store a run that waits for the answer, and then sends it to the agent as mail.

    Raises:
        IllegalTransition: This process executes no runs, the agent has too many open questions, or the former
            question cannot be closed.
    """
    if context.waking is None:
        raise IllegalTransition(
            "only a running server can ask questions", value=question.text, remedy="start it: `postroom up`"
        )
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
    if not free:
        raise IllegalTransition(
            f"{agent.name} already has {ASKING_LANES} open questions, the maximum",
            value=question.text,
            remedy="wait until some are answered; people see them with `postroom questions list`",
        )
    context.waking.ask(free[0], agent, replace(question, id=number))
    for run, ticket in same:  # the action or the kind of answer differs, so nobody may answer this question
        closed = closed_by_another(agent.name, ticket, number, now=context.now)
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


def closed_by_another(name: str, ticket: RunWaitingTicket, number: str, *, now: int) -> ToolCallResume:
    """Return the decision that closes a question that the agent has asked again as question `number`."""
    return ToolCallResume(
        decision_id=f"{ASKED_AGAIN}/{ticket.ticket_id}/{number}",
        action=ResumeDecisionAction.CANCEL,
        reason=f"{name} has asked this again as question {number}",
        updated_at=now,
        by=NOBODY,
    )


def close_questions(context: WriteContext, home: Project, agent: Agent) -> None:
    """Cancel the waiting runs of an agent that was retired, which closes their questions.

    A run that has an answer continues with it.

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
    """Return the threads for questions outside runs, beginning with the most likely one for a number."""
    lanes = [(int(number[0], 16) + place) % ASKING_LANES for place in range(ASKING_LANES)]
    return [asking_thread(home.slug, agent.name, lane) for lane in lanes]


def _keep(context: WriteContext, agent: Agent, run_id: str, question: AskedQuestion) -> None:
    """Store a question of an active run."""
    if not context.tx.ask(run_id, agent.id, question, context.now):
        raise IllegalTransition(f"{agent.name} has no active run {run_id!r}", value=run_id, remedy=_OWN_RUN)


def _question(
    context: WriteContext, asked: AskPerson, home: Project, agent: Agent, run_id: str
) -> AskedQuestion:
    """Return the question that a call asks, without an id."""
    if not asked.question.strip():
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
            remedy="use on_timeout 'cancel', or 'default' with a default",
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
    """Return the numbers of the messages that started a run, or no numbers outside a run."""
    run = context.tx.run_of(run_id) if run_id else None
    return messages_named(run.input.trigger_message_ids if run and run.input else ())


def _address(context: WriteContext, written: str, home: Project, run_id: str) -> str:
    """Return the full address of a person or agent who may or may not answer.

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
            remedy = (
                "name a person (human:NAME), operator or starter, or leave out `to`: then anyone may answer"
            )
            with suppress(UnknownAgent):
                _, named = find_person(context.tx, context.projects, written)
                remedy = f"for the person, write {HUMAN}{named.name}"
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
