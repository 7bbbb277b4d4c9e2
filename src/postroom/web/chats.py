"""The page of chat runs, with their open questions and dead letters.

The people in a chat have already got a notice about a dead letter.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, NotPermitted, StaleDecision, TooLarge, UnknownRun
from postroom.contracts.questions import MAX_TEXT_LENGTH
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.contracts.work import ChatWork, OpenQuestion
from postroom.gateway.replies import is_chat
from postroom.services.cut_ids import whole_id
from postroom.services.questions import MAX_OPEN
from postroom.stores.store import Transaction
from postroom.web import links
from postroom.web.forms import read_form
from postroom.web.questions import AnswerForm, decide, refused, snooze
from postroom.web.serving import choice, remember_name, see
from postroom.web.site import Shown, WorkingSite

_NAMED: Final = 5
"""Maximum number of waiting runs that are read to find a run by a prefix of its id."""


async def chats(site: WorkingSite, request: Request) -> Response:
    """Show the open questions and the dead letters of chats."""
    return await _show(site, request, *await site.store.read(partial(_look, site)))


async def chat_run(site: WorkingSite, request: Request) -> Response:
    """Show a chat run that waits for an answer or is a dead letter, or accept a decision about the run."""
    runs, named = site.services.runs, request.path_params["run_id"]

    def look(tx: Transaction) -> tuple[RunRecord | None, Sequence[ChatWork], Sequence[OpenQuestion]]:
        dead = runs.dead_in_chats(tx)
        waiting = tx.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,), id_prefix=named), _NAMED)
        run_ids = [
            *(row.work.run_id for row in dead),
            *(run.run_id for run in waiting if is_chat(run.thread_id)),
        ]
        run_id = whole_id(named, run_ids, what="runs", remedy=f"see {links.chats()}") or named
        mine = [row for row in dead if row.work.run_id == run_id]
        return tx.runs.threads.load_run(run_id), mine, site.services.questions.questions_of(tx, "", run_id)

    run, dead, open_questions = await site.store.read(look)
    if (
        run is None
        or not is_chat(run.thread_id)
        or (request.method == "GET" and not (dead or open_questions))
    ):
        raise _nothing_to_do(named)
    if request.method == "GET":
        return await _show(site, request, dead, open_questions)
    form = await read_form(request, site.services.visitors, AnswerForm)
    match form.do:
        case "answer":
            form.run = run.run_id
            try:
                await decide(site, "", form)
            except (StaleDecision, InvalidArgument, NotPermitted, TooLarge) as refusal:
                return await refused(site, request, "", form, refusal)
            done = form.answer if form.answer in ("yes", "no") else "answered"
            home = form.home(done=done, answered=f"/{form.run}/{form.number}")
            answer = site.done(
                request,
                home if form.back == "home" else links.chats(done=done, answered=f"{form.run}/{form.number}"),
            )
            remember_name(request, answer, form.by.strip())
            return answer
        case "snooze":
            form.run = run.run_id
            await snooze(site, "", form)
            if form.back == "home" and form.until != "0":
                return site.done(request, form.home(done="snoozed"))
            return see(form.home() if form.back == "home" else links.chats())
        case "replay" | "discard" if not dead:
            raise _nothing_to_do(named)
        case "replay":
            await runs.replay(run.run_id)
        case "discard":
            await runs.discard(run.run_id)
        case word:
            raise InvalidArgument(
                "this action does not exist: a run of a chat can only be answered, retried or dismissed",
                value=word[:40],
                remedy="use a button on the page",
            )
    return site.done(request, links.chats(done=form.do))


def _look(site: WorkingSite, tx: Transaction) -> tuple[Sequence[ChatWork], Sequence[OpenQuestion]]:
    return site.services.runs.dead_in_chats(tx), site.services.questions.open_questions(tx, "")


def _nothing_to_do(named: str) -> UnknownRun:
    return UnknownRun(
        f"no question and no dead letter of a chat has the run id {named[:80]!r}",
        value=named[:80],
        remedy=f"see {links.chats()}; the run may have been answered, retried or dismissed",
    )


async def _show(
    site: WorkingSite,
    request: Request,
    dead: Sequence[ChatWork],
    asked: Sequence[OpenQuestion],
) -> Response:
    """Show the chat runs that need a person."""
    run_id, _, number = request.query_params.get("answered", "").partition("/")
    given_answer = site.services.questions.given_answer
    return await site.draw(
        request,
        "chats",
        Shown({}, site.clock.now()),
        questions=asked,
        dead=dead,
        asked=asked,
        given=await site.store.read(lambda tx: given_answer(tx, "", run_id, number)) if run_id else None,
        longest_why=MAX_TEXT_LENGTH,
        most=MAX_OPEN,
        one_alone="run_id" in request.path_params,
        done=choice(request, "done", ("", "replay", "discard", "yes", "no", "answered")),
    )
