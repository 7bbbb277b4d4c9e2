"""Cuts text into the words that a search compares: letters and digits, folded, without their accents.

It cuts where `unicode61 remove_diacritics 2` of SQLite's FTS5 does, so that PostgreSQL finds the same.
Two kinds of text that FTS5 cannot cut become coded words, on both engines:

- A run of a script without spaces (Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer) becomes its pairs of
  neighbouring characters, and its last character. So each part of a run is found, also next to Latin text.
- A symbol such as an emoji is a word.
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


_CODE: Final = "\uf8f0"
"""Begins a coded word. It is for private use, and FTS5 takes it for a part of a word."""
_DIGITS: Final = 5
"""Hexadecimal digits of each character of a coded word."""
_UNSPACED: Final = re.compile(
    "[\u0e01-\u0e3a\u0e40-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17d3\u3005-\u3007\u3041-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)


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
    folded, start, place = "", 0, -1
    while (place := place + 1) < len(text):
        character = text[place]
        if run := _coded_at(text, place):
            if folded:
                yield Word(folded, start, place)
            folded = ""
            yield from run
            place = run[-1].end - 1
            continue
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


def asked_words(text: str) -> tuple[list[str], bool]:
    """Return the words to find side by side, and whether the last one is only the beginning of a word."""
    found = folded(text)
    if not found or not found[-1].startswith(_CODE) or len(found[-1]) != 1 + _DIGITS:
        return list(found), False
    if len(found) > 1 and len(found[-2]) == 1 + 2 * _DIGITS and found[-2].endswith(found[-1][1:]):
        return list(found[:-1]), False  # the text that is looked for may go on after this run
    return list(found), True


def indexed_text(text: str) -> str:
    """Return a text in which FTS5 finds the words that `words` returns."""
    if text.isascii():
        return text
    pieces, end = [], 0
    for word in words(text):
        if word.folded.startswith(_CODE):
            pieces.append(text[end : word.start] if end < word.start else "")
            pieces.append(f" {word.folded} ")
            end = word.end
    return "".join((*pieces, text[end:])) if pieces else text


def _coded_at(text: str, place: int) -> list[Word]:
    """Return the coded words that begin at a place; none for other text."""
    if run := _UNSPACED.match(text, place):
        normal, end = unicodedata.normalize("NFKC", run[0]), run.end()
        pairs = [_coded(normal[at : at + 2]) for at in range(len(normal))]
        if len(normal) != len(run[0]):
            return [Word(pair, place, end) for pair in pairs]
        return [Word(pair, place + at, min(place + at + 2, end)) for at, pair in enumerate(pairs)]
    character = text[place]
    if not character.isascii() and unicodedata.category(character)[0] == "S":
        return [Word(_coded(character), place, place + 1)]
    return []


def _coded(characters: str) -> str:
    return _CODE + "".join(f"{ord(character):0{_DIGITS}x}" for character in characters)


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
