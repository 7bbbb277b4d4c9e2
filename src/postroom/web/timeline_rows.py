"""Draws a window as a list for screen readers, and in vertical form for narrow screens.

In vertical form, time runs downwards. All rows of the list have the same height. Lanes are columns next to
the list.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postroom.contracts.mail import Agent
from postroom.web.timeline_marks import Arrow, Band, Picture, RunBar, Shape

ROWS: Final = 150
"""Maximum number of rows in the list of the newest events."""
COLUMNS: Final = 8
ROW: Final = 96
COLUMN: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An event as a row of the timeline.

    Exactly one of the fields `mark`, `arrow` and `band` is set.
    """

    at: int
    who: str
    mark: RunBar | None = None
    arrow: Arrow | None = None
    band: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """A run that is drawn in its column from `y0` to `y1`."""

    x: int
    y0: int
    y1: int
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Cross:
    """A message that is drawn in its row, from the column of the sender to the columns of the recipients."""

    y: int
    x0: int | None
    xs: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upright:
    """The columns next to the rows of a list."""

    columns: Sequence[Agent]
    people: frozenset[int]
    strokes: Sequence[Stroke]
    crosses: Sequence[Cross]
    width: int
    height: int


def listed(drawn: Picture) -> list[Row]:
    """Return all drawn events, newest first."""
    rows = list[Row]()
    for bar in drawn.marks:  # the time of a run is its end, or its start if it has not ended
        is_of_its_end = bar.count == 1 and bar.shape not in ("asks", "queued")
        at = bar.ended if is_of_its_end and bar.ended is not None else bar.at
        rows.append(Row(at=at, who=bar.who, mark=bar))
    rows += [
        Row(at=arrow.sent.message.created_at, who=arrow.sent.message.sender_name, arrow=arrow)
        for arrow in drawn.arrows
    ]
    rows += [Row(at=band.held.created_at, who=band.held.holder, band=band) for band in drawn.bands]
    rows.reverse()  # of events at the same time, the last is the newest
    return sorted(rows, key=lambda one: one.at, reverse=True)


def upright(drawn: Picture, rows: Sequence[Row]) -> Upright:
    """Draw the rows with columns for the most active participants."""
    shown = rows[:ROWS]
    done = Counter(row.who for row in shown)
    for row in shown:
        done.update(to.name for to in row.arrow.sent.readers) if row.arrow else None
    lanes = [lane for lane in drawn.tracks if done[lane.agent.name]]
    busiest = sorted(lanes, key=lambda lane: (not lane.is_person, -done[lane.agent.name]))[:COLUMNS]
    places = {lane.agent.name: number * COLUMN + COLUMN // 2 for number, lane in enumerate(busiest)}
    strokes, crosses = list[Stroke](), list[Cross]()
    for number, row in enumerate(shown):
        if row.mark is not None and row.who in places:
            begin, end = row.mark.at, row.mark.ended
            top = next((place for place in range(number) if end is None or shown[place].at <= end), number)
            below = (place for place in range(number, len(shown)) if shown[place].at <= begin)
            y1 = next(below, len(shown) - 1) * ROW + ROW // 2
            y0 = 0 if end is None else min(top * ROW + ROW // 2, y1 - 8)
            strokes.append(Stroke(x=places[row.who], y0=y0, y1=y1, shape=row.mark.shape))
        if row.arrow is not None:
            xs = [places[to.name] for to in row.arrow.sent.readers if to.name in places]
            if row.who in places or xs:
                crosses.append(Cross(y=number * ROW + ROW // 2, x0=places.get(row.who), xs=xs))
    return Upright(
        columns=[lane.agent for lane in busiest],
        people=frozenset(lane.agent.id for lane in busiest if lane.is_person),
        strokes=strokes,
        crosses=crosses,
        width=max(len(busiest), 1) * COLUMN,
        height=len(shown) * ROW,
    )
