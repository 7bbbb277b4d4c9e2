"""Determines the time span of a project's picture, from the address or from the events."""

from typing import Final

from starlette.requests import Request

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import Project, Span
from postroom.mail.projects import PEOPLE_KEY
from postroom.stores.mail.access import MailReads
from postroom.web.serving import choice, number
from postroom.web.timeline import AGENTS, ALONE, ARROWS, HELD
from postroom.web.timeline_axis import DAY, MAX_SPAN, MIN_SPAN, MINUTE, PRESETS, SECOND

LENGTHS: Final = (*PRESETS, "all")
DEFAULT: Final = "8h"
LAST: Final = "last"
"""The name of a span that ends at the last event, even if that event is old."""
MIN_ZOOM: Final = min(PRESETS.values())
"""The shortest span for zooming in. A link to runs that are close together may have a shorter span."""
GROWING: Final = ("1m", "15m", "1h")
"""The lengths of the span for a project without events, in the order of the project's age."""
_MARGIN: Final = 50
"""The divisor of a picture's length that gives the margin on each side, if it shows all events."""


def read_span(reads: MailReads, request: Request, project: Project, now: int) -> tuple[str, Span, int]:
    """Return the name of the span in an address, the span, and the time of the last event.

    The name is "" for a span with a fixed begin and end.

    Raises:
        InvalidArgument: The address has an invalid span.
    """
    begin, end = number(request, "from"), number(request, "to")
    if begin is None and end is None:
        length = choice(request, "span", ("", *LENGTHS, LAST))
        if length in PRESETS:
            return length, _up_to(now, PRESETS[length]), now
        there = extent(reads, project, now)
        if not length:
            # Find the name of a suitable span: the whole project or, for an old project, its newest hours. If
            # an old project was inactive in these hours, the span covers its last activity.
            if there is None:
                age = now - project.created_at
                length = next((preset for preset in GROWING if age <= PRESETS[preset] * 9 // 10), DEFAULT)
            elif there.end - there.begin <= PRESETS[DEFAULT] * 9 // 10:
                length = "all"
            else:
                length = DEFAULT if there.end > _up_to(now, PRESETS[DEFAULT]).begin else LAST
        if length in PRESETS:
            return length, _up_to(now, PRESETS[length]), now
        there = there or Span(begin=project.created_at, end=now)
        shown = there
        if length == LAST:  # the newest events within a few hours before the end
            whole = Span(begin=max(there.end - PRESETS[DEFAULT], 0), end=there.end + 1)
            agents = [agent.id for agent in reads.agents(project.id, include_retired=True, limit=AGENTS)]
            began = [message.created_at for message in reads.written(project.id, whole, limit=ARROWS)]
            began += [attempt.began_at for attempt in reads.attempt_groups(agents, whole, step=MINUTE)]
            began += [attempt.began_at for attempt in reads.attempts_alone(agents, whole, limit=ALONE)]
            # Do not zoom in so far on a single message that one second fills the picture.
            shown = Span(begin=min([*began, there.end - MINUTE]), end=there.end)
        # Include the current time, unless the events would become tiny.
        size = shown.end - shown.begin
        last = max(now if now - shown.end <= size // 2 else shown.end, shown.begin + SECOND)
        margin = (last - shown.begin) // _MARGIN
        return length, Span(begin=max(shown.begin - margin, 0), end=last + margin + 1), there.end
    if begin is None or end is None or not MIN_SPAN <= end - begin <= MAX_SPAN or end > now + MAX_SPAN:
        raise InvalidArgument(
            "a time span needs a start and a later end, in milliseconds",
            value=str(request.query_params)[:80],
            remedy="go back",
        )
    return "", Span(begin=begin, end=end), end


def extent(reads: MailReads, project: Project, now: int) -> Span | None:
    """Return the span from the first to the last event of a project, or None if there are no events.

    The span extends to the current time while a run is active or waits for an answer.
    """
    times, whole = list[int](), Span(begin=0, end=now + 1)
    first, home = reads.begin_of(project.id), reads.project(PEOPLE_KEY)
    if first is not None:
        times.append(first)
        times += [message.created_at for message in reads.written(project.id, whole, limit=1)]
    if home is not None and home.id != project.id:
        written = reads.written(home.id, whole, limit=ARROWS)
        readers = reads.recipients([message.id for message in written]) if written else {}
        times += [
            message.created_at
            for message in written
            if any(to.project_slug == project.slug and to.kind != "bcc" for to in readers[message.id])
        ]
    agents = [agent.id for agent in reads.agents(project.id, include_retired=True, limit=AGENTS)]
    for attempt in reads.attempts_before(agents, now + 1):
        is_open = attempt.ended_at is None or (attempt.outcome == "waiting" and attempt.waited_until is None)
        ended = now if is_open else max(attempt.ended_at or 0, attempt.waited_until or 0)
        times += (attempt.began_at, ended)
    for held in reads.reservations_in(project.id, whole, since=now - DAY, limit=HELD):
        times += (held.created_at, min(held.released_at or held.created_at, now))
    return Span(begin=min(times), end=min(max(times), now)) if times else None


def find_longest_span(reads: MailReads, project: Project, now: int) -> int:
    """Return the maximum length of a span: the longest preset or the age of the project."""
    first = reads.begin_of(project.id)
    age = now - min(project.created_at, now if first is None else first)
    return min(max(PRESETS[DEFAULT], age + age // 10), MAX_SPAN)


def ends_by(now: int, size: int) -> int:
    """Return the end of a span of `size` milliseconds that ends shortly after the current time."""
    return now + size // 20


def _up_to(now: int, size: int) -> Span:
    end = ends_by(now, size)
    return Span(begin=end - size, end=end)
