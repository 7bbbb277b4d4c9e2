"""The page of chats' runs that were given up: whoever wrote has the reason, people may try them again."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, UnknownRun
from postroom.contracts.work import ChatWork
from postroom.services.cut_ids import whole_id
from postroom.web import links
from postroom.web.forms import RunForm, read_form, see
from postroom.web.serving import choice
from postroom.web.site import Shown, WorkingSite


async def chats(site: WorkingSite, request: Request) -> Response:
    """Show all runs of chats that were given up."""
    return await _shown(site, request, await site.store.read(site.services.runs.dead_in_chats))


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


async def _shown(site: WorkingSite, request: Request, dead: Sequence[ChatWork]) -> Response:
    return await site.draw(
        request,
        "chats",
        Shown({}, site.clock.now()),
        dead=dead,
        one_alone="run_id" in request.path_params,
        done=choice(request, "done", ("", "replay", "discard")),
    )
