"""The first page: everything in all projects and chats that needs a person, then all projects.

Two cookies in the browser store which rows are hidden until when, and when the person visited before.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import IllegalTransition, InvalidArgument, UnknownRun
from postroom.contracts.mail import Project, Reservation
from postroom.contracts.questions import MAX_TEXT_LENGTH
from postroom.mail.conversation import here
from postroom.mail.projects import PEOPLE_KEY
from postroom.mail.reservations import conflicts, together
from postroom.mail.tasks import tasks_page, views
from postroom.mail.waking.prompts import messages_named
from postroom.services.floor import HOUR, LEASES
from postroom.services.questions import MAX_COUNTED
from postroom.services.runs import retried
from postroom.stores.mail.access import MailReads
from postroom.stores.store import Transaction
from postroom.web.forms import MAX_AT_ONCE, PlacedForm, read_form
from postroom.web.reading import MAX_REVIEWS, Frame, cut, faces_of
from postroom.web.serving import NAME_KEPT, choice, number, remembered_name, see
from postroom.web.site import PageServices, Shown, Site, WorkingSite
from postroom.web.wording import folder_name

PROJECTS: Final = 20
QUESTIONS: Final = 20
"""Maximum number of open questions on the page."""
_DONE: Final = (
    "",
    "yes",
    "no",
    "answered",
    "replay",
    "discard",
    "unchanged",
    "share",
    "end",
    "later",
    "seen",
    "snoozed",
    "taken_back",
    "closed",
    "late",
    "accepted",
    "rejected",
)
REVIEWS: Final = 10
"""Maximum number of tasks on the page that wait for a person's check, for each project."""
GROUPS: Final = 20
"""Maximum number of groups of failed runs on the page."""
MAIL: Final = 5
"""Maximum number of messages to the viewer on the page."""
FINISHED: Final = 8
"""Maximum number of finished runs on the page."""
ENDED: Final = 400
"""Maximum number of executions since the last visit that are counted."""
ACTIVE: Final = 6
"""Maximum number of active runs on the page."""
COUNTED: Final = 99
"""Maximum number of counted rows of a project. With more rows, the page shows that the count is higher."""
DAY: Final = 24 * HOUR
LOOKED_BACK: Final = 7 * DAY
"""How far back the page reports events, and how long a row can be hidden, in milliseconds."""
AWAY: Final = HOUR // 2
"""The milliseconds without a visit after which the page counts as visited again."""
MAX_HIDDEN: Final = 60
"""Maximum number of rows that a browser hides. If there are more, the rows that end first are shown."""
KEPT_ID: Final = 12
"""The number of characters at the end of a run's id that are part of the key of a row."""
LATER_COOKIE: Final = "postroom_later"
SEEN_COOKIE: Final = "postroom_seen"
_HIDDEN: Final = re.compile(r"([a-z]-[A-Za-z0-9-]{1,60})\.([0-9]{1,11})")
_SEEN: Final = re.compile(r"([0-9]{1,14})\.([0-9]{1,14})")
_NOT_IN_KEYS: Final = re.compile(r"[^A-Za-z0-9-]")
T = TypeVar("T")
DEFAULT_ADDRESS: Final = "http://127.0.0.1:8765"
_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")


class Later(NamedTuple):
    """The hidden rows of the first page and the time of the last visit, from the browser's cookies."""

    hidden: Mapping[str, int]
    """The time until which each row is hidden, keyed by the row's key."""
    since: int
    """The time after which finished runs count as new."""
    is_known: bool
    """Whether the browser has visited the page before. At the first visit, `since` is one day ago."""


async def projects(site: Site, request: Request) -> Response:
    """Show everything that needs a person, followed by all projects in the order of their newest mail."""
    after, me, services = number(request, "after") or 0, remembered_name(request), site.services
    answered, asked_after = (request.query_params.get(name, "") for name in ("answered", "asked_after"))
    address, later = str(request.base_url).rstrip("/"), _later(request, site.clock.now())

    def look(tx: Transaction) -> Shown:
        mail, now = tx.mail, site.clock.now()
        page = cut(mail.projects(limit=PROJECTS + 1, after=after), PROJECTS, lambda project: project.id)
        overlaps = {
            project.slug: together((two.first, two.second) for two in conflicts(live))
            for project in page.rows
            if (live := mail.live_reservations(project.id, now=now, limit=LEASES))
        }
        finished_tasks = {row.slug: mail.count_reviews(row.id, limit=MAX_REVIEWS) for row in page.rows}
        needs = {slug: len(overlaps.get(slug, ())) + many for slug, many in finished_tasks.items()}
        if services is not None:
            for slug, waiting in services.runs.for_people(tx, list(needs), COUNTED).items():
                needs[slug] += waiting
        counted = {
            tally.project_id: tally
            for tally in mail.tallies([project.id for project in page.rows], most=COUNTED + 1)
        }
        rows = [(project, counted[project.id]) for project in page.rows]
        inbox = dict[str, Any]()
        if services is not None:
            inbox = _inbox(services, tx, page.rows, overlaps, sum(finished_tasks.values()), later, me)
            inbox |= _asked(services, tx, asked_after, answered)
            inbox["to_settle"] += inbox["asked_in_all"]
        inbox["names"], around = _drawn(mail, page.rows, inbox)
        return Shown(
            {
                "rows": sorted(rows, key=lambda row: row[1].last_at or 0, reverse=True),
                "next": page.next,
                "needs": needs,
                **inbox,
            },
            now,
            frame=around,
        )

    await site.settle()
    shown = await site.store.read(look)
    page = await site.draw(
        request,
        "projects",
        shown,
        questions=shown.values.get("asked", ()),
        after=after,
        counted=COUNTED,
        counted_questions=MAX_COUNTED,
        at_once=MAX_AT_ONCE,
        longest_why=MAX_TEXT_LENGTH,
        done=choice(request, "done", _DONE),
        skipped=number(request, "skipped") or 0,
        address=address if _ADDRESS.fullmatch(address) else DEFAULT_ADDRESS,
    )
    if services is not None and "part" not in request.query_params:
        _remember(request, page, SEEN_COOKIE, f"{later.since if later.is_known else 0}.{shown.now}")
    return page


def _drawn(
    mail: MailReads, listed: Sequence[Project], inbox: Mapping[str, Any]
) -> tuple[dict[str, str], Frame]:
    """Return the names of the projects on the page, keyed by slug, and the avatars of the agents."""
    slugs = {one.project for part in ("asked", "snoozed", "active") for one in inbox.get(part, ())}
    slugs |= {one.project for _, one in inbox.get("failed", ())}
    others = filter(None, map(mail.project, slugs - {project.slug for project in listed}))
    projects = {project.slug: project for project in (*listed, *others)}
    slugs |= {slug for _, (slug, _) in inbox.get("clashes", ())}
    by_id = inbox.get("slugs", {})
    slugs |= {by_id[one.project_id] for one in inbox.get("finished", ())}
    slugs |= {by_id.get(one.message.project_id, "") for one in inbox.get("mine", ())}
    names = {slug: folder_name(project.human_key) for slug, project in projects.items()}
    many, people = Counter(names.values()), mail.project(PEOPLE_KEY)
    return {slug: name if many[name] == 1 else slug for slug, name in names.items()}, Frame(
        faces={} if people is None else faces_of(mail, people),
        faces_in={slug: faces_of(mail, projects[slug]) for slug in slugs if slug in projects},
    )


def _inbox(  # noqa: PLR0913 - what the page has read before
    services: PageServices,
    tx: Transaction,
    shown: Sequence[Project],
    overlaps: Mapping[str, Sequence[Sequence[Reservation]]],
    finished_tasks: int,
    later: Later,
    me: str,
) -> dict[str, Any]:
    """Return the rows that need a person, without hidden rows, and the events since the last visit."""
    mail, hidden = tx.mail, Counter[str]()

    def due(rows: Iterable[T], key: Callable[[T], str]) -> list[tuple[str, T]]:
        keyed = [(_key(key(row)), row) for row in rows]
        hidden["rows"] += sum(name in later.hidden for name, _ in keyed)
        return [(name, row) for name, row in keyed if name not in later.hidden]

    failed = due(services.runs.failed(tx), lambda one: f"d-{one.run_ids[0][-KEPT_ID:]}")
    tasks = [
        (project, task, view)
        for project in shown
        if (found := tasks_page(mail, project, "review", limit=REVIEWS))
        for task, view in zip(found, views(mail, project, found, now=tx.now(), whole=True), strict=True)
    ]
    reviews = due(tasks, lambda row: f"t-{row[1].id}-{row[1].changed_at}")
    reviews_in_all = finished_tasks - len(tasks) + len(reviews)
    clashes = due(
        [(slug, group) for slug, groups in overlaps.items() for group in groups],
        lambda row: "c-" + "-".join(str(message.id) for message in row[1][:4]),
    )
    people = mail.project(PEOPLE_KEY)
    person = mail.agent(people.id, me) if people is not None and me else None
    unread = 0 if person is None else mail.unread_count(person.id)
    return {
        "unread": unread,
        "mine": [] if person is None or not unread else mail.inbox(person.id, limit=MAIL, unread_only=True),
        "reviews": reviews,
        "reviews_in_all": reviews_in_all,
        "clashes": clashes,
        "to_settle": len(failed) + reviews_in_all + unread + len(clashes),
        "failed": failed[:GROUPS],
        "failed_in_all": len(failed),
        "hidden_rows": hidden["rows"],
        **_since(services, tx, shown, later),
    }


def _asked(services: PageServices, tx: Transaction, after: str, answered: str) -> dict[str, Any]:
    """Return a page of open questions, the number of questions, the snoozed questions and the last answer."""
    due = takewhile(lambda one: one.snoozed_until is None, services.questions.listed(tx, after))
    asked = list(islice(due, QUESTIONS + 1))
    last = asked[QUESTIONS - 1] if len(asked) > QUESTIONS else None
    held_up = tx.runs.messages.count_waiting([one.thread_id for one in asked[:QUESTIONS]]) if asked else {}
    slug, _, rest = answered.partition("/")
    run_id, _, question = rest.rpartition("/")
    return {
        "given": services.questions.given_answer(tx, slug, run_id, question) if run_id else None,
        "asked": sorted(asked[:QUESTIONS], key=lambda one: -held_up.get(one.thread_id, 0)),
        "held_up": held_up,
        "asked_after": after,
        "asked_next": last and last.place,
        "asked_in_all": services.questions.count_due(tx),
        "snoozed": services.questions.snoozed(tx, QUESTIONS),
    }


def _since(services: PageServices, tx: Transaction, shown: Sequence[Project], later: Later) -> dict[str, Any]:
    """Return the events in projects since the last visit, and the active runs."""
    mail, by_id = tx.mail, {project.id: project for project in shown}
    ended = mail.attempts_since(list(by_id), later.since, began_since=later.since - LOOKED_BACK, limit=ENDED)
    finished = [
        run
        for run in ended
        if run.outcome == "done" and _key(f"f-{run.run_id[-KEPT_ID:]}") not in later.hidden
    ]
    causes = dict[str, tuple[Project, int]]()
    for work in finished[:FINISHED]:
        run = tx.runs.threads.load_run(work.run_id)
        ids = messages_named(run.input.trigger_message_ids if run is not None and run.input else ())
        if ids:
            causes[work.run_id] = by_id[work.project_id], ids[0]
    messages = mail.messages(sorted({number for _, number in causes.values()}))
    active, active_in_all = services.runs.active(tx, ACTIVE)
    return {
        "finished": finished[:FINISHED],
        "finished_in_all": len(finished),
        "subjects": {
            run_id: messages[number]
            for run_id, (project, number) in causes.items()
            if number in messages and here(mail, project, [messages[number]])
        },
        "slugs": {project.id: project.slug for project in shown},
        "ended": {
            project.slug: Counter(
                {
                    each.run_id: each.outcome for each in reversed(ended) if each.project_id == project.id
                }.values()
            )
            for project in shown
        },
        "ended_is_cut": len(ended) == ENDED,
        "written": {
            by_id[number].slug: count
            for number, count in mail.messages_since(list(by_id), later.since).items()
        },
        "later": later,
        "active": active,
        "active_in_all": active_in_all,
        "retried": retried(tx),
    }


def _later(request: Request, now: int) -> Later:
    """Read the hidden rows and the time of the last visit from the cookies of a request."""
    hidden = {
        match[1]: int(match[2]) * 1_000
        for item in request.cookies.get(LATER_COOKIE, "").split("_")
        if (match := _HIDDEN.fullmatch(item)) and int(match[2]) * 1_000 > now
    }
    seen = _SEEN.fullmatch(request.cookies.get(SEEN_COOKIE, ""))
    if seen is None:
        return Later(hidden, now - DAY, is_known=False)
    since, last = int(seen[1]), int(seen[2])
    since = last if now - last > AWAY else since
    if not since:  # the first visit continues
        return Later(hidden, now - DAY, is_known=False)
    return Later(hidden, min(max(since, now - LOOKED_BACK), now), is_known=True)


def _key(text: str) -> str:
    """Return the key of a row in a form that a cookie can contain."""
    return _NOT_IN_KEYS.sub("", text)


def _remember(request: Request, answer: Response, name: str, text: str) -> None:
    answer.set_cookie(
        name, text, max_age=NAME_KEPT, path="/", secure=request.url.scheme == "https", samesite="strict"
    )


class HomeForm(PlacedForm):
    """The decision of a person about rows on the first page."""

    do: str = ""
    run: list[str] = msgspec.field(default_factory=list)
    later: str = ""
    """The key of a row to hide, and the number of hours: `q-4f2a.4`. With 0 hours, the row is shown again."""


async def home(site: WorkingSite, request: Request) -> Response:
    """Show the first page, or carry out a person's decision about rows of the page.

    Runs that another person has already replayed or discarded are skipped, and the page shows the number of
    skipped runs.
    """
    if request.method != "POST":
        return await projects(site, request)
    form, skipped = await read_form(request, site.services.visitors, HomeForm), 0
    runs, now = site.services.runs, site.clock.now()
    if form.do == "seen":
        answer = site.done(request, form.home(done="seen"))
        _remember(request, answer, SEEN_COOKIE, f"{now}.{now}")
        return answer
    if form.later:  # hide a row in this browser for some hours, or show all hidden rows again (`all.0`)
        hidden, match = dict(_later(request, now).hidden), _HIDDEN.fullmatch(form.later)
        if form.later == "all.0":
            hidden.clear()
        elif match is None or not 0 < int(match[2]) <= LOOKED_BACK // HOUR:
            raise InvalidArgument(
                "a row can be hidden for 1 to 168 hours",
                value=form.later[:40],
                remedy="reload the page, and use a button on it",
            )
        else:
            hidden[match[1]] = now + int(match[2]) * HOUR
        entries = sorted(hidden.items(), key=lambda one: one[1])[-MAX_HIDDEN:]
        answer = site.done(request, form.home(done="later")) if hidden else see(form.home())
        _remember(
            request, answer, LATER_COOKIE, "_".join(f"{key}.{until // 1_000}" for key, until in entries)
        )
        return answer
    if form.do not in ("replay", "discard") or not 0 < len(form.run) <= MAX_AT_ONCE:
        raise InvalidArgument(
            f"you can retry or dismiss 1 to {MAX_AT_ONCE} dead letters at once",
            value=form.do[:40],
            remedy="reload the page, and use a button on it",
        )
    for run_id in form.run:
        try:
            await (runs.replay(run_id) if form.do == "replay" else runs.discard(run_id))
        except (IllegalTransition, UnknownRun):
            skipped += 1
    if skipped == len(form.run):
        return site.done(request, form.home(done="unchanged"))
    return site.done(request, form.home(done=form.do, **({"skipped": str(skipped)} if skipped else {})))
