"""The page of a project's reservations, on which a person decides about overlapping reservations."""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import Project, Reservation
from postroom.mail.reservations import conflicts
from postroom.stores.store import Transaction
from postroom.web import links
from postroom.web.forms import Number, read_form
from postroom.web.reading import Page, cut
from postroom.web.serving import MAX_QUESTION, see
from postroom.web.site import Site, WorkingSite

LIVE: Final = 200
ENDED: Final = 30
ENDED_FOR: Final = "another agent holds the same file; ended on the pages"


async def reservations(site: Site, request: Request) -> Response:
    """Show the active reservations and the most recently ended reservations of a project.

    If the query names a path, only reservations for the path are shown.
    """
    path = request.query_params.get("path", "").strip()[:MAX_QUESTION]

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        near, now = _literal_part(path) or None, site.clock.now()
        live = cut(
            tx.mail.live_reservations(project.id, now=now, near=near, limit=LIVE + 1),
            LIVE,
            lambda one: one.id,
        )
        others: dict[int, list[Reservation]] = {}
        for conflict in conflicts(live.rows):
            others.setdefault(conflict.first.id, []).append(conflict.second)
            others.setdefault(conflict.second.id, []).append(conflict.first)
        newest = tx.mail.newest_reservations(project.id, limit=ENDED)
        return {
            "path": path,
            "live": Page(sorted(live.rows, key=lambda one: (one.pattern, one.id)), live.next),
            "overlapping": others,
            "ended": [
                reservation
                for reservation in reversed(newest)
                if reservation.released_at is not None or reservation.expires_at <= now
            ],
        }

    return await site.draw(request, "reservations", await site.read(request, look))


class ReservationForm(msgspec.Struct):
    """A person's decision to release a reservation or to make reservations shared."""

    do: str = ""
    name: str = ""
    why: str = ""
    reservation: list[Number] = []
    back: str = ""
    """`home` if the person made the decision on the first page."""


async def decide(site: WorkingSite, request: Request) -> Response:
    """End a reservation for a person, or make overlapping reservations shared."""
    project = await site.project(request)
    if request.method != "POST":
        return see(links.page(project.slug, "reservations"))
    services = site.services
    form = await read_form(request, services.visitors, ReservationForm)
    match form.do:
        case "end" if len(form.reservation) == 1:
            reason = form.why.strip() or ENDED_FOR
            await services.messages.end_reservation(
                project.slug, form.name, form.reservation[0], reason=reason
            )
        case "share" if form.reservation:
            await services.messages.share_reservations(project.slug, form.reservation)
        case other:
            raise InvalidArgument(
                "this action does not exist: a reservation can only be ended, or shared if it conflicts "
                "with another",
                value=other[:40],
                remedy="use a button on the page",
            )
    at_home = form.back == "home"
    return site.done(request, f"/?done={form.do}" if at_home else links.page(project.slug, done=form.do))


def _literal_part(path: str) -> str:
    """Return the complete segments of a path before the first wildcard."""
    segments = [segment for segment in path.replace("\\", "/").split("/") if segment not in ("", ".")]
    literal = []
    for segment in segments:
        if any(mark in segment for mark in "*?["):
            break
        literal.append(segment)
    return "/".join(literal)
