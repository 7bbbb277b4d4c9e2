"""The first page: everything in all projects and chats that waits for a person, then every project."""

import re
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import IllegalTransition, InvalidArgument, UnknownRun
from postroom.mail.projects import PEOPLE_KEY
from postroom.mail.tasks import tasks_page
from postroom.stores.store import Transaction
from postroom.web.forms import read_form, see
from postroom.web.frame import count_overlaps, count_unread
from postroom.web.questions import LONGEST_WHY
from postroom.web.reading import cut
from postroom.web.serving import choice, number, remembered_name
from postroom.web.site import Shown, Site, WorkingSite

PROJECTS: Final = 20
QUESTIONS: Final = 20
"""Maximum open questions on the page."""
REVIEWS: Final = 10
"""Maximum tasks of a project on the page that wait for a person's check."""
GROUPS: Final = 20
"""Maximum groups of failed runs on the page."""
AT_ONCE: Final = 100
"""Maximum number of runs of a group that one button replays or discards."""
COUNTED: Final = 99
"""Rows of a project are counted up to this number. Beyond it, the page shows that there are more."""
DEFAULT_ADDRESS: Final = "http://127.0.0.1:8765"
_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")


async def projects(site: Site, request: Request) -> Response:
    """Show every project, those with the most recent mail first."""
    after, me, services = number(request, "after") or 0, remembered_name(request), site.services
    address = str(request.base_url).rstrip("/")

    def look(tx: Transaction) -> Shown:
        mail, now = tx.mail, site.clock.now()
        page = cut(mail.projects(limit=PROJECTS + 1, after=after), PROJECTS, lambda project: project.id)
        needs = {one.slug: count_overlaps(mail, one, now=now) for one in page.rows}
        overlaps = sum(needs.values())
        asked = [] if services is None else services.questions.all_open(tx)
        failed = [] if services is None else services.runs.failed(tx)
        if services is not None:
            for slug, waiting in services.runs.for_people(tx, list(needs)).items():
                needs[slug] += waiting
        counted = {
            one.project_id: one for one in mail.tallies([one.id for one in page.rows], most=COUNTED + 1)
        }
        rows = [(project, counted[project.id]) for project in page.rows]
        unread = count_unread(mail, mail.project(PEOPLE_KEY), me)
        reviews = [
            (one, task) for one in page.rows for task in tasks_page(mail, one, "review", limit=REVIEWS)
        ]
        to_settle = len(asked) + sum(len(one.run_ids) for one in failed) + len(reviews) + unread
        values: dict[str, Any] = {
            "rows": sorted(rows, key=lambda row: row[1].last_at or 0, reverse=True),
            "next": page.next,
            "needs": needs,
            "unread": unread,
            "reviews": reviews,
            "to_settle": to_settle,
            "waiting": to_settle + overlaps,
            "asked": asked[:QUESTIONS],
            "asked_in_all": len(asked),
            "failed": failed[:GROUPS],
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
        at_once=AT_ONCE,
        longest_why=LONGEST_WHY,
        done=choice(request, "done", ("", "yes", "no", "late", "replay", "discard")),
        skipped=number(request, "skipped") or 0,
        address=address if _ADDRESS.fullmatch(address) else DEFAULT_ADDRESS,
    )


class FailedForm(msgspec.Struct):
    """A person's decision about the dead letters of one group."""

    do: str = ""
    run: list[str] = msgspec.field(default_factory=list)


async def home(site: WorkingSite, request: Request) -> Response:
    """Show the first page; replay or discard the dead letters of a group.

    Runs that somebody has replayed or discarded in the meantime are skipped and counted.
    """
    if request.method != "POST":
        return await projects(site, request)
    form, skipped = await read_form(request, site.services.visitors, FailedForm), 0
    runs = site.services.runs
    if form.do not in ("replay", "discard") or not 0 < len(form.run) <= AT_ONCE:
        raise InvalidArgument(
            f"between 1 and {AT_ONCE} dead letters can be replayed or discarded at once",
            value=form.do[:40],
            remedy="reload the page and press a button",
        )
    for run_id in form.run:
        try:
            await (runs.replay(run_id) if form.do == "replay" else runs.discard(run_id))
        except (IllegalTransition, UnknownRun):
            skipped += 1
    return see(f"/?done={form.do}" + (f"&skipped={skipped}" if skipped else ""))
