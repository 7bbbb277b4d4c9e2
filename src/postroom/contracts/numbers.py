"""Reads the numbers of tasks, notes and messages as people and models write them; quick to import."""

import re
from typing import Final

NUMBER: Final = re.compile(
    r"(?:(?:message|msg)[ _-]?|id |id[:=] ?|no\. ?)?#? ?(\d{1,3}(?:,\d{3})+|\d{1,16})(?:\.0*)?"
)
"""Matches a number in lower case. Its first group may contain commas: `1,234`."""
NUMBERS: Final = re.compile(r"#?\d{1,16}(?:(?:\s*[,;]\s*|\s+)(?:(?:and|&)\s+)?#?\d{1,16})+", re.IGNORECASE)


def without_kind(text: str, kind: str) -> str:
    """Remove the kind before each number in a text, as in `task-1, task-2` for the kind `task`."""
    return re.sub(rf"(?i)\b{kind}s?[ _-]?(?=#? ?\d)", "", text) if kind else text


def read_number(text: str, kind: str) -> int | None:
    """Return the number in a text such as `12`, `#12` or `task-12`, or None for an invalid text."""
    found = NUMBER.fullmatch(without_kind(text.strip().lower(), kind))
    return None if found is None or "," in found[1] else int(found[1])
