"""Yes and no as people write them, and their names. It imports nothing heavy, so that commands can use it."""

import re
from typing import Final
from unicodedata import normalize

MAX_NAME_LENGTH: Final = 64
"""Maximum characters of the name of a person who answers."""
_PLAIN: Final = re.compile(
    r"(?:(?P<yes>yes)(?:,? (?:please|thanks|thank you))?|no(?:,? (?:thanks|thank you))?)(?:\.|!{1,3})?"
)
"""A yes or a no with nothing that could limit it: "yes?", "yes..." and "yes, but" are neither."""


def plain_yes_no(text: str) -> bool | None:
    """Return whether a text is a plain yes or no, such as "Yes." or "No, thanks!"; None for other texts."""
    plain = _PLAIN.fullmatch(fold_case(text))
    return None if plain is None else plain["yes"] is not None


def fold_case(text: str) -> str:
    """Return a text in the form in which answers are compared: people see no other difference."""
    return " ".join(normalize("NFKC", text).casefold().split())
