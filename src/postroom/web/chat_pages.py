"""The page of chats' runs that were given up: whoever wrote has the reason, people may try them again."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, UnknownRun
from postroom.contracts.work import ChatWork
from postroom.services.cut_ids import whole_id
from postroom.web import links
from postroom.web.forms import PageContext, read_form, remembered_name, see, token_for
from postroom.web.serving import Endpoint, choice, html, zone_of


class ChatPages:
    """Shows runs of chats that were given up, and takes what people decide about them."""

    def __init__(self, working: PageContext) -> None:
        self._with = working

    def endpoints(self) -> Sequence[tuple[str, Endpoint]]:
        """Return the endpoints that take forms, by their addresses."""
        return (("/chats/{run_id:path}", self.run),)

    async def chats(self, request: Request) -> Response:
        """Show all that was given up."""
        return await self._shown(request, await self._with.services.runs.dead_in_chats())

    async def run(self, request: Request) -> Response:
        """Show one run that was given up; have it tried again, or take it off the list."""
        services, named = self._with.services, request.path_params["run_id"]
        dead = {one.work.run_id: one for one in await services.runs.dead_in_chats()}
        run_id = whole_id(named, dead, what="runs", remedy=f"see {links.chats()}")
        if run_id is None:
            raise UnknownRun(
                f"no chat has a run {named[:80]!r} that was given up",
                value=named[:80],
                remedy=f"see {links.chats()}; it may have been tried again, or left",
            )
        if request.method == "GET":
            return await self._shown(request, [dead[run_id]])
        form = await read_form(request, services.visitors)
        match form.text("do"):
            case "replay":
                await services.runs.replay(run_id)
            case "discard":
                await services.runs.discard(run_id)
            case word:
                raise InvalidArgument(
                    "a run of a chat can be tried again or left", value=word[:40], remedy="press a button"
                )
        return see(links.chats(done=form.text("do")))

    async def _shown(self, request: Request, dead: Sequence[ChatWork]) -> Response:
        shown = {
            "now": self._with.clock.now(),
            "zone": await zone_of(request),
            "works": True,
            "dead": dead,
            "one_alone": "run_id" in request.path_params,
            "me": remembered_name(request),
            "form_token": token_for(request, self._with.services.visitors),
            "done": choice(request, "done", ("", "replay", "discard")),
        }
        return await html("chats", shown)
