"""The output of a run as people see it: all of it, its end, or its last lines."""

import json
from collections.abc import Sequence
from typing import Final

from postroom.contracts.events import CanonicalEvent, EventScope
from postroom.contracts.quoting import end_of, strip_partial_escape, without_escapes
from postroom.contracts.work import Output
from postroom.dispatch.sinks import MORE_NOTE, SHOWN, said
from postroom.stores.store import Transaction

EVENTS: Final = 12
"""Number of a run's newest events in which the last lines of its output are searched."""
LINES: Final = 4
_LINE: Final = 400
"""Maximum number of characters in a line."""


def newest_events(tx: Transaction, run_id: str, most: int) -> tuple[list[CanonicalEvent], int, bool]:
    """Return the newest `most` events of a run, the newest event number, and whether older events exist."""
    key = EventScope.run(run_id).key
    oldest, newest = tx.events.bounds(key)
    begin = max(newest - most, oldest - 1, 0)
    return [event for _, event in tx.events.of_scope(key, after=begin, limit=most)], newest, begin > 0


def output_in(events: Sequence[CanonicalEvent], newest: int, *, is_cut: bool, most: int = SHOWN) -> Output:
    """Return the end of a run's output, at most `most` characters, from the given events of the run.

    `newest` is the number of the last event. `is_cut` is true if older events are missing.
    """
    text = "".join(map(said, events))
    shown = end_of(text, most, begins_within=is_cut)
    return Output(
        text=shown, is_cut=is_cut or len(text) > most, is_kept_whole=MORE_NOTE not in shown, after=newest
    )


def last_lines(tx: Transaction, run_id: str) -> tuple[str, int | None]:
    """Return the last lines of a run's output, and the time of the newest event.

    Without events, the time is None.
    """
    events, _, is_cut = newest_events(tx, run_id, EVENTS)
    at = max((event.created_at for event in events), default=None)
    return for_people("".join(map(said, events)), is_cut=is_cut), at


def for_people(text: str, *, is_cut: bool) -> str:
    """Return the last lines of a text that people can read, without incomplete lines."""
    whole = end_of(text, len(text), begins_within=is_cut)
    lines = [line for line in without_escapes(strip_partial_escape(whole)).splitlines() if line.strip()]
    texts: list[str] = []
    for line in reversed(lines):
        if len(texts) == LINES:
            break
        if not _is_object(line):
            texts.insert(0, line[:_LINE])
    return "\n".join(texts)


def _is_object(line: str) -> bool:
    if not (line.strip().startswith("{") and line.rstrip().endswith("}")):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
