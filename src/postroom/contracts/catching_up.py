"""Formats the summary of a project's events as text for terminals, chats and mail."""

from collections.abc import Mapping
from typing import Any, Final

from postroom.contracts.quoting import one_line

_HEADINGS: Final = {"said": "Messages"}
"""The headings of subjects whose names are unsuitable as headings."""


def summary_lines(found: Mapping[str, Any], mark: str = "  ") -> list[str]:
    """Format a summary of `catch_up` as lines of text.

    The line of each event begins with `mark`.
    """
    number = f"{found['events']} event{'' if found['events'] == 1 else 's'}"
    lines = [f"Since {found['since']}: {number}."]
    if found["skipped"]:
        lines.append(f"{found['skipped']} older events are not part of this summary.")
    about = ""
    for sentence in found["sentences"]:
        if sentence["about"] != about:
            about = sentence["about"]
            lines.append(f"{_HEADINGS.get(about, about.capitalize())}:")
        lines.append(f"{mark}{one_line(sentence['text'])}")
    return lines
