"""What a run at work asks of people: kept at once, asked when the run ends its turn, answered once."""

from itertools import count
from typing import TypedDict

from postroom.contracts.errors import IllegalTransition, InvalidArgument
from postroom.contracts.runs import OnTimeout
from postroom.contracts.waking import AskedQuestion, question_number
from postroom.mail.commands import AskPerson
from postroom.mail.context import WriteContext
from postroom.mail.identity import acting_active

_OWN_RUN = "give the run's own id: it is in POSTROOM_RUN of the program that the server has started"


class AskedView(TypedDict):
    """A question that was kept. It is asked when the run has ended its turn; end it now."""

    question_id: str
    asked: bool


def ask_person(context: WriteContext, asked: AskPerson) -> AskedView:
    """Have a person asked before the run goes on.

    Raises:
        IllegalTransition: the agent has no such run at work.
        InvalidArgument: a time is given without what silence means then, or the other way about; or no
            run is named, and the caller is none.
    """
    _, agent = acting_active(context, asked.project_key, asked.agent_name)
    if (asked.timeout_seconds is None) != (asked.on_timeout == "wait"):
        raise InvalidArgument(
            "timeout_seconds and an on_timeout other than 'wait' need one another",
            value=asked.on_timeout,
            remedy="give both, or neither to wait as long as it takes",
        )
    run_id = asked.run_id or context.caller.run_id
    if run_id is None:
        raise InvalidArgument("run_id is needed where no run's token calls", value=None, remedy=_OWN_RUN)
    question = AskedQuestion(
        id=_number(context, run_id, asked.question),
        text=asked.question,
        timeout_ms=None if asked.timeout_seconds is None else asked.timeout_seconds * 1_000,
        on_timeout=OnTimeout(asked.on_timeout),
    )
    if not context.tx.ask(run_id, agent.id, question, context.now):
        raise IllegalTransition(f"{agent.name} has no run {run_id!r} at work", value=run_id, remedy=_OWN_RUN)
    return {"question_id": question.id, "asked": True}


def _number(context: WriteContext, run_id: str, text: str) -> str:
    """Return what everybody calls the question: as before where the run at work has asked it already."""
    before = {one.text: one.id for one in context.tx.questions(run_id)}
    numbers = (question_number(run_id, text, context.now, salt) for salt in count())
    return before.get(text) or next(one for one in numbers if one not in before.values())
