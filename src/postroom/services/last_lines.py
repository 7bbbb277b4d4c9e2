"""What a run said last, in a few lines for people: beside a question, and beside who is at work."""

import json
from typing import Final

from postroom.contracts.events import EventScope
from postroom.contracts.quoting import end_of, without_escapes, without_unfinished
from postroom.contracts.transactions import Transaction
from postroom.dispatch.sinks import said

EVENTS: Final = 12
"""Events of a run among which its last lines are looked for."""
LINES: Final = 4
_LINE: Final = 400
"""Characters."""


def last_lines(tx: Transaction, run_id: str) -> tuple[str, int | None]:
    """Return the last lines that a run has put out, and when its newest event came.

    Without lines the text is empty; without events the instant is None.
    """
    key = EventScope.run(run_id).key
    oldest, newest = tx.events.bounds(key)
    if not newest:
        return "", None
    after = max(newest - EVENTS, oldest - 1, 0)
    events = tx.events.behind(key, after, EVENTS).events
    text = "".join(map(said, events))
    return for_people(text, is_cut=after > 0), max((one.created_at for one in events), default=None)


def for_people(text: str, *, is_cut: bool) -> str:
    """Return the last lines of a text that a person can read, whole ones, also while more of it comes.

    An object in JSON is of a program's protocol: the run's page has it, with all else that was put out.
    """
    whole = end_of(text, len(text), begins_within=is_cut)
    lines = [one for one in without_escapes(without_unfinished(whole)).splitlines() if one.strip()]
    found: list[str] = []
    for line in reversed(lines):
        if len(found) == LINES:
            break
        if not _is_object(line):
            found.insert(0, line[:_LINE])
    return "\n".join(found)


def _is_object(line: str) -> bool:
    if not (line.strip().startswith("{") and line.rstrip().endswith("}")):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
