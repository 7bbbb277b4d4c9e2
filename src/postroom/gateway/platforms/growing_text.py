"""Drafts that grow: what of one may be shown as written for good, and whether a text is one grown further.

A draft of an unfinished answer has its last fence closed, so that it can be read; the line that closes it is
not part of what grows.
"""

import re

_CLOSING_FENCE = re.compile(r"(?:\A|\n) {0,3}(?:`{3,}|~{3,})\s*\Z")


def settled(draft: str) -> str:
    """Return what of a draft surely stays: without white space and a closing fence at its end."""
    text = draft.rstrip()
    found = _CLOSING_FENCE.search(text)
    return text if found is None else text[: found.start()].rstrip()


def grows_from(draft: str, text: str) -> bool:
    """Say whether a text is the draft, grown or finished."""
    return text.startswith(settled(draft))
