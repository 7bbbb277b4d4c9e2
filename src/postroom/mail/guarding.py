"""The decision whether files may be changed, for the edit hooks and the commit guard."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from postroom.contracts.mail import Agent, Project, Reservation
from postroom.mail.context import ReadContext
from postroom.mail.glob_sets import folded
from postroom.mail.globs import Pattern, matches, parse_pattern, prefixes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A file that another agent has reserved exclusively."""

    path: str
    reservation: Reservation


def held_by_others(context: ReadContext, project: Project, agent: Agent, paths: Sequence[str]) -> list[Held]:
    """Return the files among these that others reserve exclusively, each with one covering reservation.

    Paths are relative to the project. The agent's own reservations and shared ones do not count.
    """
    sensitive = context.rules.case_sensitive_paths
    composed = {path: unicodedata.normalize("NFC", path) for path in paths if path}
    wanted = {path: text if sensitive else folded(text) for path, text in composed.items()}
    near = next(iter(wanted.values())) if len(wanted) == 1 else ""
    by_prefix: dict[str, list[tuple[int, Pattern]]] = {}
    for number, text in context.tx.live_patterns(
        project.id, now=context.now, near=near, but=agent.id, exclusive_only=True
    ):
        pattern = parse_pattern(text, case_sensitive=sensitive)
        if not pattern.is_resource:
            by_prefix.setdefault(pattern.prefix, []).append((number, pattern))
    covering = {
        path: number for path in wanted for number in _covering(composed[path], wanted[path], by_prefix)
    }
    found = {one.id: one for one in context.tx.reservations_by_id(sorted(set(covering.values())))}
    return [Held(path=path, reservation=found[number]) for path, number in covering.items()]


def _covering(path: str, compared: str, by_prefix: dict[str, list[tuple[int, Pattern]]]) -> Iterator[int]:
    """Yield the oldest reservation that covers a path, if there is one."""
    numbers = [
        number
        for prefix in prefixes_of(compared)
        for number, pattern in by_prefix.get(prefix, ())
        if matches(pattern, path)
    ]
    if numbers:
        yield min(numbers)
