"""The page that searches a project's messages."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.choices import SearchOrder
from postroom.contracts.mail import Project
from postroom.mail.query import parse_query
from postroom.stores.store import Transaction
from postroom.web import wording
from postroom.web.reading import cut
from postroom.web.serving import MAX_QUESTION, choice, number
from postroom.web.site import Site

HITS: Final = 20


async def search(site: Site, request: Request) -> Response:
    """Show a page of the messages that match a search.

    An empty search finds no messages.
    """
    cursor = number(request, "cursor") or 0
    question = request.query_params.get("q", "").strip()[:MAX_QUESTION]
    order: SearchOrder = "best" if choice(request, "order", ("newest", "best")) == "best" else "newest"
    query = parse_query(question)
    looked_for = wording.wanted(query) if query else wording.Wanted()

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        hits = []
        if query is not None:
            hits = tx.mail.search(project.id, query, order=order, limit=HITS + 1, cursor=cursor)
        page = cut(hits, HITS, lambda hit: hit.message.id)
        return {
            "found": [(hit.message, wording.pieces(hit.snippet, looked_for)) for hit in page.rows],
            "next": cursor + HITS if page.next and order == "best" else page.next,
            "q": question,
            "order": order,
            "has_asked": query is not None,
        }

    return await site.draw(request, "search", await site.read(request, look, is_fresh=True))
