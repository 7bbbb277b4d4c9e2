"""Conflicts between active reservations: two agents reserve the same file, at least one exclusively."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from postroom.contracts.mail import Reservation
from postroom.mail.globs import overlapping, parse_pattern


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two active reservations of different agents that overlap; `first` is the older one."""

    first: Reservation
    second: Reservation


class Numbered(Protocol):
    """A record with a number."""

    @property
    def id(self) -> int:
        """Return its number."""
        ...


N = TypeVar("N", bound=Numbered)


def together(pairs: Iterable[tuple[N, N]]) -> list[list[N]]:
    """Return the records in pairs as groups of directly or indirectly paired ones, the oldest first."""
    groups: dict[int, list[N]] = {}
    for first, second in pairs:
        one, other = groups.get(first.id, [first]), groups.get(second.id, [second])
        joined = one if one is other else [*one, *other]
        groups |= dict.fromkeys((each.id for each in joined), joined)
    found = {id(group): sorted(group, key=lambda each: each.id) for group in groups.values()}
    return sorted(found.values(), key=lambda group: group[0].id)


def conflicts(live: Sequence[Reservation]) -> list[Conflict]:
    """Return each conflicting pair of active reservations once, the oldest first."""
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
