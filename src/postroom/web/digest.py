"""The page that summarises recent events in a project, as the tool `catch_up` does for agents."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.mail import Project
from postroom.mail.catching_up import SUBJECTS
from postroom.stores.store import Transaction
from postroom.web.serving import number
from postroom.web.site import WorkingSite

MAX_HOURS: Final = 168


async def digest(site: WorkingSite, request: Request) -> Response:
    """Show a summary of the events in a project during the last `hours`, at most one week."""
    hours = min(max(number(request, "hours") or 24, 1), MAX_HOURS)

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        summary = site.services.runs.caught_up(tx, project.slug, hours)
        return {"told": summary, "hours": hours, "subjects": SUBJECTS}

    return await site.draw(request, "digest", await site.read(request, look))
