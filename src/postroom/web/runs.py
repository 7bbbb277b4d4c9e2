"""The page of a project's runs, with waiting messages, on which a person decides about runs."""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import IllegalTransition, InvalidArgument, UnknownRun
from postroom.contracts.mail import Project
from postroom.contracts.run_stores import BEFORE_ALL_RUNS, RunCursor
from postroom.contracts.work import SHOWN_STATES, RunFilter, RunSearch, Work
from postroom.services.floor import HOUR, MAX_LINES
from postroom.stores.store import Transaction
from postroom.web import links
from postroom.web.forms import MAX_AT_ONCE, RunForm, read_form
from postroom.web.reading import OFFERED, offered_names, subjects_of
from postroom.web.serving import MAX_NAME_LENGTH, choice, number, remembered_name
from postroom.web.site import PageServices, WorkingSite

_GOING: Final = ("at work", "queued")
_ACTS: Final = ("cancel", "replay", "hasten", "discard")
"""The decisions about a run that a person can make."""
_SPANS: Final = {"": 0, "hour": HOUR, "day": 24 * HOUR, "week": 7 * 24 * HOUR}
"""The periods that the time filter offers, in milliseconds. 0 means any time."""
MAX_ID_LENGTH: Final = 512
MAX_TEXT_LENGTH: Final = 200
"""Maximum number of characters of a search for runs."""
STATES: Final[tuple[RunFilter, ...]] = (
    "",
    "at work",
    "queued",
    "asks",
    "ended",
    "done",
    "cancelled",
    "failed",
)
_BY_WORD: Final[dict[str, RunFilter]] = {SHOWN_STATES.get(state, state): state for state in STATES}
"""The states, keyed by the words that pages show for them."""
_PLACE: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.(.{1,512})")


async def runs(site: WorkingSite, request: Request) -> Response:
    """Show the runs of a project's agents, or accept a decision about runs."""
    if request.method == "POST":
        return await decide(site, request)
    span = choice(request, "since", tuple(_SPANS))
    services, wanted = site.services.runs, _read_search(request, span, site.clock.now())
    is_filtered = wanted != RunSearch()

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        slug = project.slug
        runs = services.found(tx, slug, wanted if is_filtered else RunSearch(state="ended"))
        works = [] if is_filtered else services.unsettled(tx, slug)
        waiting = [] if is_filtered else services.waiting(tx, slug)
        began = [entry.message for entry in waiting]
        agents = offered_names(tx.mail, project, wanted.agent)
        return {
            "chosen": wanted,
            "is_filtered": is_filtered,
            "span": span,
            "query": request.url.query,
            "done": choice(request, "done", ("", *_ACTS)),
            "many": number(request, "many") or 0,
            "skipped": number(request, "skipped") or 0,
            "states": STATES,
            "agents": agents[:OFFERED],
            "has_more_agents": len(agents) > OFFERED,
            "found": runs,
            "unsettled": works,
            "heard": {
                work.run_id: services.heard_at(tx, work)
                for work in [work for work in works if work.state == "at work"][:MAX_LINES]
            },
            "waiting": waiting,
            "subjects": subjects_of(tx.mail, project, [*works, *runs.works], began),
            "live": choice(request, "live", ("0", "1")) == "1",
        }

    shown = await site.read(request, look)
    works = await services.explained(shown.values["unsettled"])
    ended = await services.explained(shown.values["found"].works)
    return await site.draw(
        request,
        "runs",
        shown,
        going=[work for work in works if work.state in _GOING],
        asking=[work for work in works if work.state == "asks"],
        dead=[work for work in works if work.can_replay],
        ended=[work for work in ended if is_filtered or not work.can_replay],
    )


async def decide(site: WorkingSite, request: Request) -> Response:
    """Carry out a person's decision about one or more runs."""
    services, project = site.services, await site.project(request)
    form = await read_form(request, services.visitors, RunForm)
    if form.do not in _ACTS or not 0 < len(form.run) <= MAX_AT_ONCE:
        raise InvalidArgument(
            "this action does not exist: a run can only be cancelled, retried or dismissed",
            value=form.do[:40],
            remedy="use a button on the page",
        )
    run_ids = await site.store.read(
        lambda tx: [known_run(services, tx, project, named).run_id for named in form.run]
    )
    runs, skipped = services.runs, 0
    acts: dict[str, Callable[[str], Awaitable[Work]]] = {
        "cancel": partial(runs.cancel, by=remembered_name(request)),
        "replay": runs.replay,
        "hasten": runs.hasten,
        "discard": runs.discard,
    }
    act = acts[form.do]
    if len(run_ids) == 1 and not form.back:
        work = await act(run_ids[0])
        return site.done(request, links.page(project.slug, "runs", work.run_id, done=form.do))
    for run_id in run_ids:
        try:
            await act(run_id)
        except IllegalTransition:
            skipped += 1
    query = dict(parse_qsl(form.back[:1_000]))
    same = {name: query.get(name, "") for name in ("q", "agent", "state", "since", "before")}
    result = {"done": form.do, "many": len(run_ids), "skipped": skipped}
    return site.done(request, links.page(project.slug, "runs", **same, **result))


def known_run(services: PageServices, tx: Transaction, project: Project, named: str) -> Work:
    """Return a run of a project's agents.

    Raises:
        UnknownRun: The project has no such run.
    """
    work = None
    if 0 < len(named) <= MAX_ID_LENGTH and "\0" not in named:
        work = services.runs.work(tx, named)
    if work is None or work.project != project.slug:
        raise UnknownRun(f"{project.slug} has no run {named[:80]!r}", value=named[:80])
    return work


def _read_search(request: Request, span: str, now: int) -> RunSearch:
    """Return the search for runs that an address describes.

    Raises:
        InvalidArgument: The address has an unknown state or an invalid position.
    """
    query = request.query_params
    before = _PLACE.fullmatch(query.get("before", ""))
    if before is None and query.get("before"):
        raise InvalidArgument(
            f"there is no page of runs before {query['before'][:40]!r}",
            value=query["before"][:40],
            remedy="return to the newest runs",
        )
    state = query.get("state", "")
    if state not in _BY_WORD and state not in STATES:
        raise InvalidArgument(
            f"state must be one of {', '.join(filter(None, _BY_WORD))}, not {state[:40]!r}",
            value=state[:40],
            remedy="choose a state from the list",
        )
    return RunSearch(
        state=_BY_WORD[state] if state in _BY_WORD else STATES[STATES.index(state)],
        agent=query.get("agent", "")[:MAX_NAME_LENGTH],
        text=query.get("q", "").strip()[:MAX_TEXT_LENGTH],
        since=now - _SPANS[span] if span else 0,
        before=BEFORE_ALL_RUNS if before is None else RunCursor(int(before[1]), int(before[2]), before[3]),
    )
