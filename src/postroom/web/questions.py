"""The page of questions: the open questions of a project's agents, and recent answers."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, NotPermitted, PostroomError, StaleDecision, TooLarge
from postroom.contracts.mail import Project
from postroom.contracts.messages import Json
from postroom.contracts.plain_answers import MAX_NAME_LENGTH
from postroom.contracts.questions import (
    ASKED_AGAIN,
    MAX_FIELDS,
    MAX_TEXT_LENGTH,
    NOBODY,
    PAGES,
    Given,
    QuestionKind,
    person,
)
from postroom.contracts.runs import AnsweredTicket
from postroom.services.questions import MAX_OPEN
from postroom.services.statuses import status_of
from postroom.stores.store import Transaction
from postroom.web import links
from postroom.web.forms import PlacedForm, read_form
from postroom.web.serving import remember_name, see
from postroom.web.site import Shown, WorkingSite

MAX_ANSWERS: Final = 30
_HOUR: Final = 3_600_000
_FOR: Final = {"1h": _HOUR, "4h": 4 * _HOUR, "1d": 24 * _HOUR, "1w": 168 * _HOUR, "0": 0}
"""The times for which a question can be snoozed, in milliseconds."""


class AnswerForm(PlacedForm):
    """A person's answer to a question, or the withdrawal of an answer."""

    do: str = ""
    answer: str = ""
    why: str = ""
    by: str = ""
    run: str = ""
    number: str = ""
    answer_id: str = ""
    """The answer that is withdrawn."""
    until: str = ""
    names: list[str] = msgspec.field(default_factory=list)
    """The names of the fields, if the question asks for a form."""
    v0: str = ""
    v1: str = ""
    v2: str = ""
    v3: str = ""
    v4: str = ""
    v5: str = ""
    v6: str = ""
    v7: str = ""
    v8: str = ""
    v9: str = ""
    """The values of the fields `names`, in the same order."""
    back: str = ""


async def questions(site: WorkingSite, request: Request) -> Response:
    """Show the open questions and recent answers of a project, or accept an answer."""
    if request.method == "POST":
        return await _answer(site, request)
    asking = site.services.questions

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        return {
            "asked": asking.open_questions(tx, project.slug),
            "given": asking.given_answers(tx, project.slug, limit=MAX_ANSWERS),
            "done": request.query_params.get("done", ""),
            "longest_why": MAX_TEXT_LENGTH,
            "live": request.query_params.get("live") == "1",
            "in_chats": asking.is_asked_in_chats(tx),
            "most": MAX_OPEN,
        }

    shown = await site.read(request, look)
    return await site.draw(request, "questions", shown, questions=shown.values["asked"])


async def _answer(site: WorkingSite, request: Request) -> Response:
    slug, asking = (await site.project(request)).slug, site.services.questions
    form = await read_form(request, site.services.visitors, AnswerForm)
    run_id, number = form.run, form.number
    if form.do == "snooze":
        await snooze(site, slug, form)
        if form.back == "home" and form.until != "0":
            return site.done(request, form.home(done="snoozed"))
        return see(_back(slug, form))
    if form.do == "take_back":
        taken = await asking.take_back(slug, run_id, number, form.answer_id)
        if taken.decision.by == NOBODY:
            done = "closed" if taken.decision.decision_id.startswith(f"{ASKED_AGAIN}/") else "late"
            return site.done(request, _back(slug, form, done=done))
        typed = _typed_again(form, taken)
        if typed is not None:  # on another page, the words would be lost
            return await refused(site, request, slug, typed, None)
        return site.done(request, _back(slug, form, done="taken_back"))
    try:
        await decide(site, slug, form)
    except (StaleDecision, InvalidArgument, NotPermitted, TooLarge) as refusal:
        return await refused(site, request, slug, form, refusal)
    done = form.answer if form.answer in ("yes", "no") else "answered"
    places = {
        "control": links.page(slug, done=done, answered=f"{run_id}/{number}"),
        "home": form.home(done=done, answered=f"{slug}/{run_id}/{number}"),
        "run": links.page(slug, "runs", run_id, answered=number),
    }
    answer = site.done(request, places.get(form.back) or links.page(slug, "questions", done=number))
    remember_name(request, answer, form.by.strip())
    return answer


def _typed_again(form: AnswerForm, given: AnsweredTicket) -> AnswerForm | None:
    """Return the form of a withdrawn answer with the person's words, or None for an answer without words."""
    asked, decision = given.ticket.asked, given.decision
    result = decision.result if isinstance(decision.result, dict) else {}
    text, values, words = result.get("text"), result.get("values"), decision.reason or ""
    typed = msgspec.structs.replace(form, do="answer", by=decision.by)
    if isinstance(values, dict):
        for place, field in enumerate(asked.fields):
            value = values.get(field.name, "")
            shown = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            setattr(typed, f"v{place}", shown)
        return typed
    if asked.kind is QuestionKind.TEXT:
        typed.answer = str(text)
        return typed
    choice = result.get("choice")
    if isinstance(choice, str):  # a comment is in parentheses after it
        words = words[len(choice) :].strip().removeprefix("(").removesuffix(")")
    typed.why = text if isinstance(text, str) else words
    return typed if typed.why else None


def _back(slug: str, form: AnswerForm, **told: str) -> str:
    """Return the address of the page on which a person filled in a form."""
    places = {
        "control": links.page(slug, **told),
        "home": form.home(**told),
        "run": links.page(slug, "runs", form.run, **told),
    }
    return places.get(form.back) or links.page(slug, "questions", **told)


async def refused(
    site: WorkingSite, request: Request, slug: str, form: AnswerForm, refusal: PostroomError | None
) -> Response:
    """Show why an answer was refused, with the form that the person filled in or with the open questions.

    `refusal` is None if the person has withdrawn the answer. The slug "" stands for chats.
    """
    asking = site.services.questions

    def look(tx: Transaction, _: Project | None = None) -> dict[str, Any]:
        mine = [one for one in asking.questions_of(tx, slug, form.run) if one.number == form.number]
        return {
            "mine": mine[0] if mine else None,
            "before": asking.given_answer(tx, slug, form.run, form.number),
            "others": () if mine else asking.others(tx, slug, form.run),
        }

    if slug:
        shown = await site.read(request, look)
    else:
        shown = Shown(await site.store.read(look), site.clock.now())
    values = {"slug": slug, "typed": form, "refusal": refusal, "longest_why": MAX_TEXT_LENGTH}
    values |= {"home": form.home(), "asked_after": form.asked_after}
    mine, others = shown.values["mine"], shown.values["others"]
    questions, status = [mine] if mine else others, HTTPStatus.OK if refusal is None else status_of(refusal)
    return await site.draw(request, "refused_answer", shown, status, questions=questions, **values)


async def snooze(site: WorkingSite, slug: str, form: AnswerForm) -> None:
    """Snooze a question for everybody, for the time that a person chose.

    The slug "" stands for a question in a chat.

    Raises:
        InvalidArgument: The page does not offer this time.
        StaleDecision: The question is not open.
    """
    if form.until not in _FOR:
        raise InvalidArgument(
            "a question can only be snoozed for 1h, 4h, 1d or 1w",
            value=form.until[:40],
            remedy="use a button on the page",
        )
    asking, by = site.services.questions, form.by.strip()[:MAX_NAME_LENGTH]
    await asking.snooze_on_page(slug, form.run, form.number, for_ms=_FOR[form.until], by=by)


async def decide(site: WorkingSite, slug: str, form: AnswerForm) -> None:
    """Answer a question with the form that a person has filled in.

    The slug "" stands for a question in a chat.

    Raises:
        InvalidArgument, TooLarge: The form is incomplete, or has too many characters.
        StaleDecision: The question is not open.
    """
    why, by = form.why.strip(), form.by.strip()
    if len(why) > MAX_TEXT_LENGTH or len(by) > MAX_NAME_LENGTH:
        raise TooLarge(
            f"a comment can have at most {MAX_TEXT_LENGTH} characters, a name at most {MAX_NAME_LENGTH}",
            value=max(len(why), len(by)),
            remedy="shorten the comment or the name; nothing was answered",
        )
    if not by:
        raise InvalidArgument("the answer does not name a person", value=by, remedy="enter your name")
    filled: Json = {name: getattr(form, f"v{place}") for place, name in enumerate(form.names[:MAX_FIELDS])}
    # The button for an answer in words sends the comment as the answer.
    answer = Given(
        value=filled or form.answer or why, by=person(by), at=PAGES, why=why if form.answer else ""
    )
    await site.services.questions.decide(slug, form.run, form.number, answer)
