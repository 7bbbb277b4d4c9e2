"""The page of a project's notes, with a search."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.mail import Project
from postroom.mail.notes import note_views, notes_with
from postroom.stores.store import Transaction
from postroom.web.serving import MAX_QUESTION, number
from postroom.web.site import Site


async def notes(site: Site, request: Request) -> Response:
    """Show the active notes with all words of a search, newest first; or one note, whether active or not."""
    asked, question = number(request, "note"), request.query_params.get("q", "").strip()[:MAX_QUESTION]

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        if asked is None:
            found = notes_with(tx.mail.active_notes(project.id, now=site.clock.now()), question)
        else:
            one = tx.mail.note(asked)
            found = [] if one is None or one.project_id != project.id else [one]
        return {
            "asked": asked,
            "rows": list(zip(found, note_views(tx.mail, found), strict=True)),
            "q": question,
            "is_active": [one.ends_at > site.clock.now() for one in found],
        }

    return await site.draw(request, "notes", await site.read(request, look))
