"""The page of chats' runs: open questions, and dead letters, whose senders have the reason."""

from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, StaleDecision, UnknownRun
from postroom.contracts.work import ChatWork, OpenQuestion
from postroom.services.cut_ids import whole_id
from postroom.stores.transaction import Transaction
from postroom.web import links
from postroom.web.forms import RunForm, read_form, see
from postroom.web.questions import LONGEST_WHY, AnswerForm, decide
from postroom.web.serving import choice, remember_name
from postroom.web.site import Shown, WorkingSite


async def chats(site: WorkingSite, request: Request) -> Response:
    """Show the open questions and the dead letters of chats; take an answer to a question."""
    stale = ""
    if request.method == "POST":
        form = await read_form(request, site.services.visitors, AnswerForm)
        try:
            await decide(site, "", form)
        except StaleDecision as error:
            stale = error.message
        else:
            answer = see(links.chats(done=form.answer))
            remember_name(request, answer, form.by.strip())
            return answer

    def look(tx: Transaction) -> tuple[Sequence[ChatWork], Sequence[OpenQuestion]]:
        return site.services.runs.dead_in_chats(tx), site.services.questions.open_questions(tx, "")

    dead, asked = await site.store.read(look)
    return await _shown(site, request, dead, asked, stale)


async def chat_run(site: WorkingSite, request: Request) -> Response:
    """Show one run that was given up; have it tried again, or take it off the list."""
    runs, named = site.services.runs, request.path_params["run_id"]
    dead = {one.work.run_id: one for one in await site.store.read(runs.dead_in_chats)}
    run_id = whole_id(named, dead, what="runs", remedy=f"see {links.chats()}")
    if run_id is None:
        raise UnknownRun(
            f"no dead letter of a chat has the run id {named[:80]!r}",
            value=named[:80],
            remedy=f"see {links.chats()}; it may have been replayed or discarded",
        )
    if request.method == "GET":
        return await _shown(site, request, [dead[run_id]])
    form = await read_form(request, site.services.visitors, RunForm)
    match form.do:
        case "replay":
            await runs.replay(run_id)
        case "discard":
            await runs.discard(run_id)
        case word:
            raise InvalidArgument(
                "a dead letter of a chat can be replayed or discarded",
                value=word[:40],
                remedy="press a button",
            )
    return see(links.chats(done=form.do))


async def _shown(
    site: WorkingSite,
    request: Request,
    dead: Sequence[ChatWork],
    asked: Sequence[OpenQuestion] = (),
    stale: str = "",
) -> Response:
    return await site.draw(
        request,
        "chats",
        Shown({}, site.clock.now()),
        HTTPStatus.CONFLICT if stale else HTTPStatus.OK,
        stale=stale,
        dead=dead,
        asked=asked,
        longest_why=LONGEST_WHY,
        one_alone="run_id" in request.path_params,
        done=choice(request, "done", ("", "replay", "discard", "yes", "no")),
    )
