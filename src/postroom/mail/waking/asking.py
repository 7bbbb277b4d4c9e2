"""Questions of an active run to people: stored at once, asked at the end of the turn, answered once."""

from itertools import count
from typing import TypedDict

from postroom.contracts.errors import IllegalTransition, InvalidArgument
from postroom.contracts.mail import Agent
from postroom.contracts.runs import OnTimeout
from postroom.contracts.waking import AskedQuestion, question_number
from postroom.mail.commands import AskPerson
from postroom.mail.context import WriteContext
from postroom.mail.identity import acting_active

_OWN_RUN = "give the run's own id from POSTROOM_RUN of the program that the server started"


class AskedView(TypedDict):
    """A stored question. The question is asked when the run has ended its turn, so end the turn now."""

    question_id: str
    asked: bool


def ask_person(context: WriteContext, asked: AskPerson) -> AskedView:
    """Store a question to a person; it is asked when the run ends its turn.

    Raises:
        IllegalTransition: The agent has no such active run.
        InvalidArgument: Only one of a timeout and its effect is given, or the call neither names a run nor
            comes from one.
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
    """Restore the question that belongs to an answer stored under a key.

    If the server crashes or the attempt fails, the attempt ends and its question is removed. The next attempt
    repeats the call and gets the stored result, so the question must exist under the same id. A question that
    is open or answered is not asked again.

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
    """Return the number of the question, or the earlier number if the active run has already asked it."""
    before = {one.text: one.id for one in context.tx.questions(run_id)}
    numbers = (question_number(run_id, text, context.now, salt) for salt in count())
    return before.get(text) or next(one for one in numbers if one not in before.values())
