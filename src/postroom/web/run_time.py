"""Where a run's time went, and what keeps one that waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from postroom.contracts.timeline import Attempt
from postroom.contracts.work import Work
from postroom.web.timeline_marks import Shape

GATES: Final = (
    ("superseded", "Nothing newer has replaced it"),
    ("not_due", "It is due"),
    ("thread_busy", "Nothing else is at work on its thread"),
    ("behind_question", "No question is open on its thread"),
    ("behind_others", "It is the first of its thread"),
    ("elsewhere", "It may run on this server"),
    ("at_limit", "Limits allow it"),
    ("over_budget", "Its budget allows it"),
    ("draining", "The server takes work"),
    ("no_free_slot", "A slot is free"),
    ("tenant_at_limit", "Its tenant has a slot free"),
)
"""What a queued run passes, in the order in which the queue looks at it."""
_CALLED: Final = {
    "queued": "waited to begin",
    "done": "at work",
    "at-work": "at work",
    "failed": "failed attempts",
    "interrupted": "interrupted",
    "asks": "waited for a person",
    "cancelled": "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One thing that a run passes before it begins."""

    text: str
    state: Literal["passed", "stops", "later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a run's time: what it was spent on, and where it is, in percent of the whole."""

    shape: Shape
    length: int
    x: float
    width: float

    @property
    def called(self) -> str:
        """What it was spent on."""
        return _CALLED[self.shape]


def gates(work: Work) -> list[Gate]:
    """Return what a queued run has passed, what stops it, and what comes behind that; none for another."""
    if work.state != "queued":
        return []
    names = [name for name, _ in GATES]
    stop = names.index(work.gate) if work.gate in names else len(names)
    return [
        Gate(text=text, state="passed" if place < stop else "stops" if place == stop else "later")
        for place, (_, text) in enumerate(GATES)
    ]


def stretches(work: Work, attempts: Sequence[Attempt], now: int) -> list[Stretch]:
    """Return what a run's time was spent on, in order, from when it was accepted to its end or to now."""
    parts: list[tuple[Shape, int, int]] = []
    at = min([work.created_at, *(one.queued_at for one in attempts)])
    for one in attempts:
        parts.append(("queued", at, one.began_at))
        end = one.ended_at if one.ended_at is not None else now
        shape: Shape = "at-work" if one.ended_at is None else "done"
        if one.outcome in ("failed", "cancelled"):
            shape = one.outcome
        elif one.outcome == "cut_off":
            shape = "interrupted"
        parts.append((shape, one.began_at, end))
        at = end
        if one.outcome == "waiting":
            at = one.waited_until if one.waited_until is not None else now
            parts.append(("asks", end, at))
    if work.state == "queued":
        parts.append(("queued", at, now))
    parts = [(shape, begin, end) for shape, begin, end in parts if end > begin]
    if not parts:
        return []
    first, whole = parts[0][1], max(parts[-1][2] - parts[0][1], 1)
    return [
        Stretch(
            shape=shape,
            length=end - begin,
            x=round((begin - first) * 100 / whole, 3),
            width=round(max((end - begin) * 100 / whole, 0.3), 3),
        )
        for shape, begin, end in parts
    ]
