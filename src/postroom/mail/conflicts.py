"""Which live reservations overlap: two agents hold the same file, at least one of them alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.contracts.mail import Reservation
from postroom.mail.globs import overlapping, parse_pattern


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two live reservations of different agents that overlap; `first` was made first."""

    first: Reservation
    second: Reservation


def conflicts(live: Sequence[Reservation]) -> list[Conflict]:
    """Return each pair of live reservations that is a conflict once, the oldest first."""
    ordered = sorted(live, key=lambda one: one.id)
    patterns = [parse_pattern(one.pattern) for one in ordered]
    found = []
    for number, one in enumerate(ordered):
        later = ordered[number + 1 :]
        for position in overlapping(patterns[number], patterns[number + 1 :]):
            other = later[position]
            if other.agent_id != one.agent_id and (one.exclusive or other.exclusive):
                found.append(Conflict(one, other))
    return found
