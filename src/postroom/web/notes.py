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
    """Show one note, or the active notes that contain all words of a search, newest first."""
    note_id, question = number(request, "note"), request.query_params.get("q", "").strip()[:MAX_QUESTION]

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        if note_id is None:
            notes = notes_with(tx.mail.active_notes(project.id, now=site.clock.now()), question)
        else:
            note = tx.mail.note(note_id)
            notes = [] if note is None or note.project_id != project.id else [note]
        return {
            "asked": note_id,
            "rows": list(zip(notes, note_views(tx.mail, notes), strict=True)),
            "q": question,
            "is_active": [note.ends_at > site.clock.now() for note in notes],
        }

    return await site.draw(request, "notes", await site.read(request, look))
