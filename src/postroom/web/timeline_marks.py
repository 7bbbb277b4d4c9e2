"""Draws a window: lanes in groups, with marks. Positions are in percent horizontally, else in pixels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from postroom.contracts.mail import Agent, Attempt, AttemptGroup, Reservation
from postroom.contracts.work import QueueState
from postroom.mail.reservations import conflicts
from postroom.web.timeline import Sent, Window, joined, nearness, reaches
from postroom.web.timeline_axis import Axis, lasts
from postroom.web.wording import one_line

Shape = Literal["at-work", "done", "cancelled", "failed", "interrupted", "dead", "asked", "asks", "queued"]
GROUPS: Final = (
    ("needs", "Needs you"),
    ("work", "Active"),
    ("quiet", "Quiet"),
    ("idle", "Idle"),
)
FOLDED: Final = frozenset({"quiet", "idle"})
TOGETHER: Final = 20
"""The number of lanes above which lanes are grouped. A quiet group with more lanes is collapsed."""
LANES: Final = 200
"""Maximum number of lanes of a group that are drawn. The activity of the other lanes is only listed."""
BARS: Final = 600
"""Maximum number of bars for successful runs."""
LANE: Final = 34
HEAD: Final = 40
BAR: Final = 14
COUNTS: Final = 44
THINNEST: Final = 0.25
"""The minimum width of a mark, in percent, so that people can see and click it."""
_GROUP_PARTS: Final = 60
_IDLE: Final = ("idle", "")
_WORDS: Final[Mapping[Shape, str]] = {
    "at-work": "is active",
    "done": "succeeded",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted",
    "failed": "failed",
    "dead": "became a dead letter",
    "asked": "was active until it asked",
    "asks": "waits for an answer",
    "queued": "is queued",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A participant that has a line in the picture."""

    agent: Agent
    group: str
    is_person: bool = False
    y: int = 0
    """The vertical position of the middle of the lane, or 0 if the lane is not drawn."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of lanes under one heading.

    `busy` is the relative number of runs in each part of the span, from 0 to 1.
    """

    key: str
    name: str
    count: int
    is_open: bool
    lanes: Sequence[Track]
    y: int
    busy: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBar:
    """A bar on the lane of an agent, for one event or for several joined events."""

    key: str
    """`run:<id>`, or `runs:<begin>-<end>` for a bar of several runs."""
    shape: Shape
    who: str
    y: int
    x: float
    width: float
    at: int
    ended: int | None
    count: int = 1
    text: str = ""
    run_id: str = ""

    @property
    def words(self) -> str:
        """The description of the bar for screen readers."""
        if self.count > 1:
            return f"{self.count} runs"
        return "asked a person" if self.shape == "asks" and self.ended is not None else _WORDS[self.shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """The line of a message to one recipient.

    The line runs from `y0` to `y1` at `x`, and continues to `wake` if the message started a run.
    """

    y1: int
    wake: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A message that is drawn as an arrow.

    The message has no legs if no participant has a drawn lane.
    """

    sent: Sent
    x: float
    y0: int
    legs: Sequence[Leg]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A reservation that is drawn as a band."""

    held: Reservation
    x: float
    width: float
    y: int
    overlaps: Sequence[Reservation] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything that the timeline draws for one time span."""

    axis: Axis
    height: int
    people: Sequence[Track]
    groups: Sequence[Group]
    marks: Sequence[RunBar]
    arrows: Sequence[Arrow]
    bands: Sequence[Band]
    counts: Sequence[float]
    now: float | None
    """The position of the current time, if it is within the span."""

    @property
    def tracks(self) -> Iterator[Track]:
        """All participants, including the participants in collapsed groups."""
        yield from self.people
        for group in self.groups:
            yield from group.lanes


def picture(seen: Window, standing: QueueState, *, now: int, opened: frozenset[str]) -> Picture:
    """Draw the events of a window.

    Groups in `opened` are expanded. A `-` before the name of a group collapses the group.
    """
    axis = Axis(seen.span)
    top = COUNTS if seen.counts else 0
    # If messages are only counted, their senders and recipients are unknown.
    present = [person for person in seen.people if seen.counts or person.id in seen.took_part]
    people = [
        Track(agent=person, group="people", is_person=True, y=top + number * LANE + LANE // 2)
        for number, person in enumerate(present)
    ]
    groups, height = _groups(seen, standing, opened, axis, now, top + len(people) * LANE)
    lanes = {lane.agent.id: lane for group in groups for lane in group.lanes}
    lanes |= {lane.agent.id: lane for lane in people}
    highest = max(seen.counts, default=0)
    return Picture(
        axis=axis,
        height=height,
        people=people,
        groups=groups,
        marks=list(_marks(seen, standing, lanes, axis, now)),
        arrows=list(_arrows(seen, lanes, axis)),
        bands=list(_bands(seen, lanes, axis)),
        counts=[count / highest for count in seen.counts] if highest else [],
        now=axis.at(now) if seen.span.begin <= now < seen.span.end else None,
    )


def _groups(
    seen: Window, standing: QueueState, opened: frozenset[str], axis: Axis, now: int, y: int
) -> tuple[list[Group], int]:
    which = _standings(seen, standing, now)
    together = len(seen.agents) > TOGETHER
    groups = []
    for key, name in GROUPS if together else (("all", ""), GROUPS[-1]):
        mine = [
            agent
            for agent in seen.agents
            if (state := which.get(agent.id, _IDLE)[0]) == key or (key == "all" and state != "idle")
        ]
        if not mine and not together:
            continue
        if key not in FOLDED or key in opened:
            is_open = True
        else:
            is_open = key == "quiet" and len(mine) <= TOGETHER and f"-{key}" not in opened
        begin, y = y, y + (HEAD if name else 0)
        lanes = []
        for number, lane_agent in enumerate(mine):
            (state, note), is_drawn = which.get(lane_agent.id, _IDLE), is_open and number < LANES
            lanes.append(Track(agent=lane_agent, group=state, y=y + LANE // 2 if is_drawn else 0, note=note))
            y += LANE if is_drawn else 0
        busy: Sequence[float] = ()
        if name:  # the runs that started in each part of the span, relative to the busiest part
            ids, parts = {agent.id for agent in mine}, [0] * _GROUP_PARTS
            began = [(bar.began_at, bar.count) for bar in seen.bars if bar.agent_id in ids]
            began += [(attempt.began_at, 1) for attempt in seen.alone if attempt.agent_id in ids]
            for at, count in began:
                parts[min(int(axis.at(at) * _GROUP_PARTS / 100), _GROUP_PARTS - 1)] += count
            highest = max(parts)
            busy = [part / highest for part in parts] if highest else ()
        groups.append(
            Group(key=key, name=name, count=len(mine), is_open=is_open, lanes=lanes, y=begin, busy=busy)
        )
    return groups, max(y, LANE)


def _standings(seen: Window, standing: QueueState, now: int) -> dict[int, tuple[str, str]]:
    """Return the group and the state of each agent that has activity."""
    standings: dict[int, tuple[str, str]] = {}
    for bar in seen.bars:
        standings[bar.agent_id] = ("quiet", "")
    for agent_id in seen.took_part:
        standings.setdefault(agent_id, ("quiet", ""))
    for held in seen.held:
        standings.setdefault(held.agent_id, ("quiet", ""))
    for pair in conflicts([reservation for reservation in seen.held if _end(reservation) > now]):
        standings[pair.first.agent_id] = standings[pair.second.agent_id] = ("needs", "in conflict")
    for attempt in seen.alone:
        before = standings.get(attempt.agent_id, ("quiet", ""))
        if attempt.outcome == "waiting" and attempt.waited_until is None:
            standings[attempt.agent_id] = "needs", "waiting"
        elif attempt.outcome in ("failed", "cut_off") and attempt.run_id in standing.given_up:
            standings[attempt.agent_id] = "needs", "dead letter"
        elif before[0] == "needs":
            standings[attempt.agent_id] = before
        else:
            standings[attempt.agent_id] = ("work", "active") if attempt.ended_at is None else before
    names = {agent.name.casefold(): agent.id for agent in seen.agents}
    for wait in standing.queued:
        its = names.get(wait.agent.casefold())
        if its is not None and standings.get(its, _IDLE)[0] not in ("needs", "work"):
            standings[its] = ("work", "queued")
    return standings


def _marks(
    seen: Window, standing: QueueState, lanes: Mapping[int, Track], axis: Axis, now: int
) -> Iterator[RunBar]:
    # Draw the bars on the lanes. Bars are joined until there are few enough.
    bars, step = [bar for bar in seen.bars if bar.agent_id in lanes], nearness(seen.span)
    while len(bars) > BARS:
        step *= 2
        bars = joined(sorted(bars, key=lambda one: (one.agent_id, one.began_at)), step)
    for bar in bars:
        lane = lanes[bar.agent_id]
        if bar.count == 1:
            yield from _queue_mark(bar.first_id, bar, lane, axis)
        shape: Shape = "cancelled" if bar.is_cancelled else "done"
        run_id = bar.run_id if bar.count == 1 else ""
        key = f"attempt:{bar.first_id}" if bar.count == 1 else f"runs:{bar.first_id}"
        yield _mark(lane, axis, shape, bar.began_at, bar.ended_at, key=key, run_id=run_id, count=bar.count)
    for attempt in seen.alone:
        if attempt.agent_id in lanes:
            yield from _of_attempt(attempt, lanes[attempt.agent_id], standing, axis, now)
    names = {lane.agent.name.casefold(): lane for lane in lanes.values() if not lane.is_person}
    for wait in standing.queued:
        its = names.get(wait.agent.casefold())
        if its is not None and wait.since < axis.span.end and now > axis.span.begin:
            yield _mark(
                its,
                axis,
                "queued",
                wait.since,
                None,
                now=now,
                key=f"queued:{wait.run_id}",
                run_id=wait.run_id,
            )


def _of_attempt(one: Attempt, lane: Track, standing: QueueState, axis: Axis, now: int) -> Iterator[RunBar]:
    yield from _queue_mark(one.id, one, lane, axis)
    is_dead = one.run_id in standing.given_up
    shape: Shape = "at-work" if one.ended_at is None else "done"
    if one.outcome == "waiting":
        shape = "asked"
    elif one.outcome in ("failed", "cut_off"):  # a run that its server's end cut off does not count as failed
        shape = "dead" if is_dead else "failed" if one.outcome == "failed" else "interrupted"
    key, text = f"attempt:{one.id}", one_line(one.error)
    if one.outcome == "cut_off" and not text:
        text = "the server of the run ended or lost its lease"
    if one.ended_at is None or one.ended_at > axis.span.begin:
        yield _mark(
            lane, axis, shape, one.began_at, one.ended_at, now=now, key=key, run_id=one.run_id, text=text
        )
    if one.outcome == "waiting" and one.ended_at is not None and reaches(one, axis.span.begin):
        begin = one.ended_at
        if begin < axis.span.end:
            yield _mark(
                lane, axis, "asks", begin, one.waited_until, now=now, key=f"asks:{one.id}", run_id=one.run_id
            )


def _queue_mark(number: int, one: Attempt | AttemptGroup, lane: Track, axis: Axis) -> Iterator[RunBar]:
    """Draw the time that an attempt waited before its start, if the time is long enough to be visible."""
    begin = max(one.queued_at, axis.span.begin)
    if one.began_at - begin > axis.length // 200 and one.began_at > axis.span.begin:
        yield _mark(lane, axis, "queued", begin, one.began_at, key=f"queued:{number}", run_id=one.run_id)


def _mark(  # noqa: PLR0913 - what a mark is made of, by name
    lane: Track,
    axis: Axis,
    shape: Shape,
    began: int,
    ended: int | None,
    *,
    key: str,
    run_id: str,
    now: int = 0,
    count: int = 1,
    text: str = "",
) -> RunBar:
    x = axis.at(began)
    end = axis.at(max(ended if ended is not None else now, began))
    width = max(end - x, THINNEST)
    return RunBar(
        key=key,
        shape=shape,
        who=lane.agent.name,
        y=lane.y,
        x=min(x, 100 - THINNEST),
        width=round(width, 3),
        at=began,
        ended=ended,
        count=count,
        text=text,
        run_id=run_id,
    )


def _arrows(seen: Window, lanes: Mapping[int, Track], axis: Axis) -> Iterator[Arrow]:
    for sent in seen.sent:
        sender = lanes.get(sent.message.sender_id)
        readers = [lanes[to.agent_id] for to in sent.readers if to.agent_id in lanes]
        if sender is None and not readers:
            continue
        is_drawn = not seen.counts  # otherwise, the message is listed, and is part of the counts
        legs = list[Leg]()
        for to in readers if is_drawn else ():
            if to.y:
                run = sent.runs.get(to.agent.id)
                is_woken = run is not None and run.delivered_at >= sent.message.created_at
                legs.append(Leg(y1=to.y, wake=axis.at(run.delivered_at) if run and is_woken else None))
        y0 = sender.y if sender is not None and is_drawn else 0
        yield Arrow(sent=sent, x=axis.at(sent.message.created_at), y0=y0, legs=legs)


def _bands(seen: Window, lanes: Mapping[int, Track], axis: Axis) -> Iterator[Band]:
    overlaps: dict[int, list[Reservation]] = {}
    for conflict in conflicts(seen.held):
        if conflict.first.created_at < _end(conflict.second) and conflict.second.created_at < _end(
            conflict.first
        ):
            overlaps.setdefault(conflict.first.id, []).append(conflict.second)
            overlaps.setdefault(conflict.second.id, []).append(conflict.first)
    for reservation in seen.held:
        lane = lanes.get(reservation.agent_id)
        if lane is None:
            continue
        x = axis.at(reservation.created_at)
        width = max(axis.at(_end(reservation)) - x, THINNEST)
        y = lane.y and lane.y + BAR // 2 + 4
        yield Band(
            held=reservation, x=x, width=round(width, 3), y=y, overlaps=overlaps.get(reservation.id, ())
        )


def _end(one: Reservation) -> int:
    return one.released_at if one.released_at is not None else one.expires_at


def took(mark: RunBar) -> str:
    """Return how long an event lasted."""
    return "" if mark.ended is None else lasts(max(mark.ended - mark.at, 0))
