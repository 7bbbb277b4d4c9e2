"""The page of chats' runs that were given up: whoever wrote has the reason, people may try them again."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, UnknownRun
from postroom.web import links
from postroom.web.forms import PageContext, read_form, see, token_for
from postroom.web.run_pages import LONGEST_ID
from postroom.web.serving import Endpoint, choice, html


class ChatPages:
    """Shows runs of chats that were given up, and takes what people decide about them."""

    def __init__(self, working: PageContext) -> None:
        self._with = working

    def endpoints(self) -> Sequence[tuple[str, Endpoint]]:
        """Return the endpoints by their addresses."""
        return (("/chats", self.chats),)

    async def chats(self, request: Request) -> Response:
        """Show what was given up; have it tried again, or take it off the list."""
        services = self._with.services
        if request.method == "POST":
            form = await read_form(request, services.visitors)
            run_id = form.text("run")[:LONGEST_ID]
            if not (await services.runs.work(run_id)).chat:
                raise UnknownRun(f"no chat has a run {run_id[:80]!r}", value=run_id[:80])
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
        return await html(
            "chats",
            {
                "now": self._with.clock.now(),
                "works": True,
                "dead": await services.runs.dead_in_chats(),
                "form_token": token_for(request, services.visitors),
                "done": choice(request, "done", ("", "replay", "discard")),
            },
        )
