"""The timeline of a project as a picture. The address contains the zoom, the filters and the selection."""

from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import UnknownRun
from postroom.contracts.mail import Project, Span
from postroom.contracts.work import QueueState
from postroom.stores.mail.access import MailReads
from postroom.stores.store import Transaction
from postroom.web import links, reading
from postroom.web.serving import NUMBER, choice
from postroom.web.site import Site
from postroom.web.timeline import Window, window
from postroom.web.timeline_axis import MIN_SPAN, PRESETS, Axis, lasts, spelled
from postroom.web.timeline_marks import BAR, LANE, LANES, Picture, picture, took
from postroom.web.timeline_rows import ROWS, listed, upright
from postroom.web.timeline_span import DEFAULT, LENGTHS, MIN_ZOOM, ends_by, find_longest_span, read_span

KINDS: Final = {"messages": "arrows", "runs": "marks", "files": "bands"}
"""The kinds of marks that can be shown alone, each with the part of the picture that contains them."""
FOLDINGS: Final = ("-idle", "-quiet", "idle", "quiet")
MAX_NAME_LENGTH: Final = 600
TAIL: Final = 12
"""The number of lines of a run's output that are shown next to the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The timeline that the URL of a page requests: its time span, agent and thread."""

    slug: str
    now: int
    length: str = ""
    """The name of a span that ends at the current time, or "" for a fixed span."""
    span: Span
    last: int = 0
    """The time of the newest event, or the end of a fixed span."""
    longest: int = PRESETS[DEFAULT]
    """The maximum length of the span."""
    agent: str = ""
    thread: str = ""
    kind: str = ""
    """The kind of marks to draw, of `KINDS`, or "" for all."""
    opened: str = ""
    chosen: str = ""

    def to(self, **changes: Any) -> str:
        """Return the address of the timeline with some values changed."""
        copy = replace(self, **changes)
        begin, end = (None, None) if copy.length else (copy.span.begin, copy.span.end)
        named = {"from": begin, "to": end, "kind": copy.kind, "open": copy.opened, "sel": copy.chosen}
        return links.page(
            copy.slug, "timeline", agent=copy.agent, thread=copy.thread, span=copy.length, **named
        )

    @property
    def choosing(self) -> str:
        """The address of the timeline, to which the caller appends the key of the selected mark."""
        address = self.to(chosen="")
        return f"{address}{'&' if '?' in address else '?'}sel="

    @property
    def limits(self) -> tuple[int, int]:
        """The shortest and the longest allowed length of the span."""
        length = self.span.end - self.span.begin
        return min(MIN_ZOOM, length), max(self.longest, length)

    @property
    def nearest(self) -> str:
        """The name of the preset length that is nearest to the current length."""
        length = self.span.end - self.span.begin
        return min(PRESETS, key=lambda one: max(PRESETS[one] / length, length / PRESETS[one]))

    @property
    def is_past(self) -> bool:
        """Whether the picture ends before the current time."""
        return self.span.end < self.now

    def at(self, begin: int, end: int) -> str:
        """Return the address of the timeline for another span."""
        half = max(end - begin, MIN_SPAN) // 2
        middle = min((begin + end) // 2, ends_by(self.now, 2 * half) - half)
        return self.to(length="", span=Span(begin=max(middle - half, 0), end=middle + half))

    def zoomed(self, by: float) -> str:
        """Return the address of a span that is `by` times as long and has the same middle."""
        shortest, longest = self.limits
        half = int(min(max((self.span.end - self.span.begin) * by, shortest), longest) / 2)
        middle = (self.span.begin + self.span.end) // 2
        return self.at(middle - half, middle + half)

    def moved(self, by: float) -> str:
        """Return the address of a span that is moved by a fraction of its length."""
        step = int((self.span.end - self.span.begin) * by)
        return self.at(self.span.begin + step, self.span.end + step)

    def folding(self, group: str, *, is_open: bool) -> str:
        """Return the address of the timeline with one group of lanes collapsed or expanded."""
        given_values = set(self.opened.split(",")) - {"", group, f"-{group}"}
        return self.to(opened=",".join(sorted(given_values | {f"-{group}" if is_open else group})))


async def timeline(site: Site, request: Request) -> Response:
    """Show the timeline of a project, an agent or a thread."""

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        seen, query = _seen(tx.mail, request, project, site.clock.now())
        standing = QueueState()
        if site.services is not None:
            standing = site.services.runs.standing(tx, project.slug)
        drawn = picture(
            seen, standing, now=site.clock.now(), opened=frozenset(query.opened.split(",")) - {""}
        )
        if query.kind:
            others: dict[str, Any] = dict.fromkeys(set(KINDS.values()) - {KINDS[query.kind]}, ())
            drawn = replace(drawn, **others)
        return {
            "asked": query,
            "seen": seen,
            "drawn": drawn,
            "about_runs": {run.run_id: sent.message for sent in seen.sent for run in sent.runs.values()},
            **_chosen(site, tx, project, query, drawn),
        }

    shown = await site.read(request, look)
    view, drawn, seen = (shown.values[name] for name in ("asked", "drawn", "seen"))
    rows = listed(drawn)
    # Find the address of the rest of the list; "" if the list is complete.
    if len(rows) <= ROWS:
        further = ""
    else:
        last = rows[ROWS - 1].at
        # Further events of the same time may exist, unless the list has only events of this time.
        end = last + (rows[0].at > last)
        begin = max(min(view.span.begin, end - MIN_SPAN), 0)
        further = view.to(length="", span=Span(begin=begin, end=end))
    return await site.draw(
        request,
        "timeline",
        shown,
        rows=rows,
        tall=upright(drawn, rows),
        further=further,
        day=Axis(seen.day),
        lengths=LENGTHS,
        kinds=KINDS,
        lasts=lasts,
        took=took,
        spelled=spelled,
        sizes={"lane": LANE, "bar": BAR, "lanes": LANES, "rows": ROWS},
    )


def _chosen(site: Site, tx: Transaction, project: Project, asked: Asked, drawn: Picture) -> dict[str, object]:
    """Return the content of the panel that shows the selected message or run."""
    kind, _, named = asked.chosen.partition(":")
    if kind == "message" and NUMBER.fullmatch(named):
        return {"panel": "message", "shown": reading.message(tx.mail, project, int(named))}
    if not kind:
        return {"panel": ""}
    mark = next((bar for bar in drawn.marks if bar.key == asked.chosen), None)
    band = next((band for band in drawn.bands if f"held:{band.held.id}" == asked.chosen), None)
    if band is not None:
        return {"panel": "held", "band": band}
    if mark is None:
        return {"panel": "gone"}
    panel = {"panel": "run", "mark": mark, "work": None, "tail": "", "about": [], "questions": []}
    if site.services is None or not mark.run_id:
        return panel
    runs = site.services.runs
    try:
        work = runs.work(tx, mark.run_id)
    except UnknownRun:  # the thread has been deleted, so only the attempt is known
        return panel
    panel["work"] = work
    panel["tail"] = "\n".join(runs.last_output(tx, work.run_id).text.rstrip().splitlines()[-TAIL:])
    panel["about"] = list(reading.subjects_of(tx.mail, project, [work]).values())
    if work.questions and work.finished_at is None:
        panel["questions"] = site.services.questions.questions_of(tx, project.slug, work.run_id)
    return panel


def _seen(reads: MailReads, request: Request, project: Project, now: int) -> tuple[Window, Asked]:
    query = request.query_params
    view = Asked(
        slug=project.slug,
        now=now,
        span=Span(begin=0, end=1),
        agent=query.get("agent", "")[:MAX_NAME_LENGTH],
        thread=query.get("thread", "")[:MAX_NAME_LENGTH],
        kind=choice(request, "kind", ("", *KINDS)),
        opened=",".join(item for item in FOLDINGS if item in query.get("open", "").split(",")),
        chosen=query.get("sel", "")[:MAX_NAME_LENGTH],
    )
    length, span, last = read_span(reads, request, project, now)
    view = replace(view, length=length, span=span, last=last)
    seen = window(reads, project, span, agent=view.agent, thread_id=view.thread)
    return seen, replace(view, longest=find_longest_span(reads, project, now))
