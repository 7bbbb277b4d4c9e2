"""Cuts text into the words that a search compares: letters and digits, folded, without their accents.

It cuts where `unicode61 remove_diacritics 2` of SQLite's FTS5 does, so that PostgreSQL finds the same.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_FIRST_MARK: Final = "\u0300"
_LAST_MARK: Final = "\u0331"
"""The combining accents that belong to the word they stand in and leave no trace in it."""
_ASCII_WORD: Final = re.compile(r"[0-9A-Za-z]+")


class Word(NamedTuple):
    """A word as it is compared, and where it stands in the text."""

    folded: str
    start: int
    end: int


def words(text: str) -> Iterator[Word]:
    """Yield the words of a text in order."""
    if text.isascii():
        for match in _ASCII_WORD.finditer(text):
            yield Word(match[0].lower(), match.start(), match.end())
        return
    folded, start = "", 0
    for place, character in enumerate(text):
        piece = _folded(character)
        if piece is None or (piece == "" and not folded):
            if folded:
                yield Word(folded, start, place)
            folded = ""
        else:
            start = start if folded else place
            folded += piece
    if folded:
        yield Word(folded, start, len(text))


def folded(text: str) -> Sequence[str]:
    """Return the words of a text as they are compared, in order."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return [word.folded for word in words(text)]


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
