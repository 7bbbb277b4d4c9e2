"""The page of questions: open questions of a project's agents, and their recent answers."""

from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, StaleDecision, TooLarge
from postroom.contracts.mail import Project
from postroom.contracts.messages import Json
from postroom.contracts.questions import MAX_FIELDS, MAX_TEXT_LENGTH, Given, person
from postroom.services.questions import MAX_NAME_LENGTH
from postroom.services.shown import PAGES
from postroom.stores.store import Transaction
from postroom.web import links
from postroom.web.forms import read_form, see
from postroom.web.serving import remember_name
from postroom.web.site import WorkingSite

MAX_ANSWERS: Final = 30
_FOR: Final = {"1h": 3_600_000, "1d": 86_400_000, "0": 0}
"""How long a question can be put off, in milliseconds."""
LATE: Final = "/?done=late"
"""The address of the first page after an answer that came too late."""


class AnswerForm(msgspec.Struct):
    """A person's answer to a run's question, or the withdrawal of an answer."""

    do: str = ""
    answer: str = ""
    why: str = ""
    by: str = ""
    run: str = ""
    number: str = ""
    until: str = ""
    names: list[str] = []
    """The names of the fields of a question that asks for a form."""
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
    """The values of these fields, in the same order."""
    back: str = ""


async def questions(site: WorkingSite, request: Request) -> Response:
    """Show a project's open questions and recent answers; accept an answer."""
    if request.method == "POST":
        return await _answered(site, request)
    asking = site.services.questions

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        return {
            "asked": asking.open_questions(tx, project.slug),
            "given": asking.given_answers(tx, project.slug, limit=MAX_ANSWERS),
            "done": request.query_params.get("done", ""),
            "longest_why": MAX_TEXT_LENGTH,
            "live": request.query_params.get("live") == "1",
            "in_chats": asking.count_in_chats(tx),
        }

    shown = await site.read(request, look)
    return site.showing(await site.draw(request, "questions", shown), shown.values["asked"])


async def _answered(site: WorkingSite, request: Request) -> Response:
    slug, asking = (await site.project(request)).slug, site.services.questions
    form = await read_form(request, site.services.visitors, AnswerForm)
    run_id, number = form.run, form.number
    if form.do == "snooze":
        await put_off(site, slug, form)
        return see("/" if form.back == "home" else links.page(slug, "questions"))
    if form.do == "take_back":
        await asking.take_back(slug, run_id, number)
        places = {"control": links.page(slug), "home": "/"}
        return see(places.get(form.back) or links.page(slug, "questions"))
    try:
        await decide(site, slug, form)
    except StaleDecision:
        if form.back == "home":
            return see(LATE)

        def look(tx: Transaction, project: Project) -> dict[str, Any]:
            asked = asking.open_questions(tx, slug)
            return {
                "before": asking.given_answer(tx, slug, run_id, number),
                "asked": [one for one in asked if one.run_id == run_id],
            }

        return await site.draw(request, "stale_answer", await site.read(request, look), 409)
    done = form.answer if form.answer in ("yes", "no") else "answered"
    places = {
        "control": links.page(slug, done=done, answered=f"{run_id}/{number}"),
        "home": f"/?{urlencode({'done': done, 'answered': f'{slug}/{run_id}/{number}'})}",
        "run": links.page(slug, "runs", run_id),
    }
    answer = see(places.get(form.back) or links.page(slug, "questions", done=number))
    remember_name(request, answer, form.by.strip())
    return answer


async def put_off(site: WorkingSite, slug: str, form: AnswerForm) -> None:
    """Put off a question of a project ("" for a chat) for the time that a person has chosen.

    Raises:
        InvalidArgument: The page does not offer this time.
        StaleDecision: The question is not open.
    """
    if form.until not in _FOR:
        raise InvalidArgument(
            "a question can be put off for 1h or 1d", value=form.until[:40], remedy="press a button"
        )
    asking, by = site.services.questions, form.by.strip()[:MAX_NAME_LENGTH]
    await asking.put_off(slug, form.run, form.number, for_ms=_FOR[form.until], by=by)


async def decide(site: WorkingSite, slug: str, form: AnswerForm) -> None:
    """Answer a question of a project ("" for a chat) with the form that a person has filled in.

    Raises:
        InvalidArgument, TooLarge: The form is not complete, or has too many characters.
        StaleDecision: The question is not open.
    """
    why, by = form.why.strip(), form.by.strip()
    if len(why) > MAX_TEXT_LENGTH or len(by) > MAX_NAME_LENGTH:
        raise TooLarge(
            f"a comment can have at most {MAX_TEXT_LENGTH} characters, a name at most {MAX_NAME_LENGTH}",
            value=max(len(why), len(by)),
            remedy="shorten it; nothing was answered",
        )
    if not by:
        raise InvalidArgument(
            "the answer does not name a person", value=by, remedy="go back and enter your name"
        )
    filled: Json = {name: getattr(form, f"v{place}") for place, name in enumerate(form.names[:MAX_FIELDS])}
    given = Given(value=filled or form.answer, by=person(by), at=PAGES, why=why)
    await site.services.questions.decide(slug, form.run, form.number, given)
