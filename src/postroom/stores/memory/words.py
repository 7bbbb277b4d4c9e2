"""Cuts text into the words that a search compares: letters and digits, folded, without their accents."""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

_FIRST_MARK, _LAST_MARK = "\u0300", "\u0331"
"""The combining accents that belong to the word they stand in and leave no trace in it."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it is compared, and where it stands in the text."""

    folded: str
    start: int
    end: int


def words(text: str) -> list[Word]:
    """Return the words of a text in order."""
    found: list[Word] = []
    folded, start = "", 0
    for place, character in enumerate(text):
        piece = _folded(character)
        if piece is None or (piece == "" and not folded):
            if folded:
                found.append(Word(folded, start, place))
            folded = ""
        else:
            start = start if folded else place
            folded += piece
    if folded:
        found.append(Word(folded, start, len(text)))
    return found


@lru_cache(maxsize=4_096)
def _folded(character: str) -> str | None:
    """Return what a character adds to its word; None when it ends one."""
    category = unicodedata.category(character)
    if category == "Mn" and _FIRST_MARK <= character <= _LAST_MARK:
        return ""
    if category[0] not in "LN" and category != "Co":
        return None
    lower = character.casefold() if len(character.casefold()) == 1 else character.lower()
    base = unicodedata.normalize("NFD", lower)[0]
    return base if base.isascii() else lower
