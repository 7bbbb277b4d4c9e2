"""The first page: every project, with the number of things that wait for a person."""

import re
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.mail.projects import PEOPLE_KEY
from postroom.stores.store import Transaction
from postroom.web.frame import count_overlaps, count_unread
from postroom.web.reading import cut
from postroom.web.serving import number, remembered_name
from postroom.web.site import Shown, Site

PROJECTS: Final = 20
COUNTED: Final = 99
"""Rows of a project are counted up to here; beyond it the page says that there are more."""
DEFAULT_ADDRESS: Final = "http://127.0.0.1:8765"
_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")


async def projects(site: Site, request: Request) -> Response:
    """Show every project, those with the newest mail first."""
    after, me, services = number(request, "after") or 0, remembered_name(request), site.services
    address = str(request.base_url).rstrip("/")

    def look(tx: Transaction) -> Shown:
        mail, now = tx.mail, site.clock.now()
        page = cut(mail.projects(limit=PROJECTS + 1, after=after), PROJECTS, lambda project: project.id)
        needs = {one.slug: count_overlaps(mail, one, now=now) for one in page.rows}
        dead = asked = 0
        if services is not None:
            dead = services.runs.count_dead_in_chats(tx)
            asked = services.questions.count_in_chats(tx)
            for slug, waiting in services.runs.for_people(tx, list(needs)).items():
                needs[slug] += waiting
        counted = {
            one.project_id: one for one in mail.tallies([one.id for one in page.rows], most=COUNTED + 1)
        }
        rows = [(project, counted[project.id]) for project in page.rows]
        values: dict[str, Any] = {
            "rows": sorted(rows, key=lambda row: row[1].last_at or 0, reverse=True),
            "next": page.next,
            "needs": needs,
            "unread": count_unread(mail, mail.project(PEOPLE_KEY), me),
            "dead_in_chats": dead,
            "asked_in_chats": asked,
        }
        return Shown(values, now)

    await site.settle()
    shown = await site.store.read(look)
    return await site.draw(
        request,
        "projects",
        shown,
        after=after,
        counted=COUNTED,
        address=address if _ADDRESS.fullmatch(address) else DEFAULT_ADDRESS,
    )
