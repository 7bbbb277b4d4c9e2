"""Which live reservations overlap: two agents hold the same file, at least one of them alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from postroom.contracts.mail import Reservation
from postroom.mail.globs import overlapping, parse_pattern


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two live reservations of different agents that overlap; `first` was made first."""

    first: Reservation
    second: Reservation


class Numbered(Protocol):
    """Something with a number of its own."""

    @property
    def id(self) -> int:
        """Return its number."""
        ...


N = TypeVar("N", bound=Numbered)


def together(pairs: Iterable[tuple[N, N]]) -> list[list[N]]:
    """Return what pairs are about in groups, each of all that hang together by pairs, the oldest first."""
    groups: dict[int, list[N]] = {}
    for first, second in pairs:
        one, other = groups.get(first.id, [first]), groups.get(second.id, [second])
        joined = one if one is other else [*one, *other]
        groups |= dict.fromkeys((each.id for each in joined), joined)
    found = {id(group): sorted(group, key=lambda each: each.id) for group in groups.values()}
    return sorted(found.values(), key=lambda group: group[0].id)


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
