"""The routes of the pages. The function of each page reads the store once, and fills one template.

The server renders the pages, so they work without JavaScript. A postroom error becomes an error page in the
same frame. The outer layers of the application handle any other exception.
"""

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from postroom.contracts.clock import Clock
from postroom.stores.store import SqlStore
from postroom.web.agents import agent, agents
from postroom.web.chats import chat_run, chats
from postroom.web.control_room import control_room
from postroom.web.digest import digest
from postroom.web.files import asset_routes
from postroom.web.find import find
from postroom.web.messages import attachment, mark, message, preview, source
from postroom.web.notes import notes
from postroom.web.projects import home, projects
from postroom.web.push import push
from postroom.web.questions import questions
from postroom.web.reservations import decide, reservations
from postroom.web.run import run
from postroom.web.runs import runs
from postroom.web.schedules import schedules
from postroom.web.search import search
from postroom.web.site import PageServices, Site, WorkingSite
from postroom.web.tasks import decide_task, tasks
from postroom.web.threads import thread, threads
from postroom.web.timeline_pages import timeline
from postroom.web.write import write

_FORM = ("GET", "POST")


def page_routes(store: SqlStore, *, clock: Clock, services: PageServices | None = None) -> list[BaseRoute]:
    """Return the routes of the pages and their files. With `services`, people can also change data.

    Every path is `/`, or is below `/chats`, `/find`, `/p`, `/push`, `/attachments`, `/previews` or `/static`.
    """
    site = Site(store=store, clock=clock)
    works: list[BaseRoute]
    if services is None:
        works = [site.route("/", projects)]
    else:
        site = working = WorkingSite(store=store, clock=clock, services=services)
        works = [
            working.route("/", home, _FORM),
            working.route("/chats", chats),
            working.route("/push", push, _FORM),
            working.route("/p/{slug}/questions", questions, _FORM),
            working.route("/p/{slug}/write", write, _FORM),
            working.route("/p/{slug}/m/{message_id}/mark", mark, _FORM),
            working.route("/p/{slug}/reservations/decide", decide, _FORM),
            working.route("/p/{slug}/runs", runs, _FORM),
            working.route("/p/{slug}/runs/{run_id:path}", run, _FORM),
            working.route("/p/{slug}/schedules", schedules, _FORM),
            working.route("/p/{slug}/tasks/decide", decide_task, _FORM),
            working.route("/p/{slug}/digest", digest),
            working.route("/chats/{run_id:path}", chat_run, _FORM),
        ]
    return [
        *works,
        site.route("/find", find),
        site.route("/p", _nowhere),
        site.route("/p/{slug}", control_room),
        site.route("/p/{slug}/agents", agents),
        site.route("/p/{slug}/agents/{name:path}", agent),
        site.route("/p/{slug}/timeline", timeline),
        site.route("/p/{slug}/threads", threads),
        site.route("/p/{slug}/t/{thread_id:path}", thread),
        site.route("/p/{slug}/m/{message_id}", message),
        site.route("/p/{slug}/m/{message_id}/source", source),
        site.route("/p/{slug}/reservations", reservations),
        site.route("/p/{slug}/tasks", tasks),
        site.route("/p/{slug}/notes", notes),
        site.route("/p/{slug}/search", search),
        site.route("/p/{rest:path}", _nowhere),
        site.route("/attachments/{sha256}", attachment),
        site.route("/previews/{sha256}", preview),
        *asset_routes(),
    ]


async def _nowhere(site: Site, request: Request) -> Response:
    """Report that a page does not exist."""
    slug = request.path_params.get("rest", "").partition("/")[0]
    return await site.failure(request, slug, HTTPStatus.NOT_FOUND, f"there is no page at {request.url.path}")
