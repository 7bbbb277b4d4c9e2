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
_CODED: Final = f" {_CODE}0123456789abcdef"
"""The characters of coded words, and the space between two of them."""
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
    end = 0
    for run in _UNSPACED.finditer(text):
        yield from _spaced_words(text, end, run.start())
        yield from _coded_words(run)
        end = run.end()
    yield from _spaced_words(text, end, len(text))


def folded(text: str) -> Sequence[str]:
    """Return the words of a text as they are compared, in order."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    pieces = {ord(character): _piece(character) for character in {*text, *_CODED}}
    return _UNSPACED.sub(_coded_run, text).translate(pieces).split()


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
    coded = _UNSPACED.sub(_coded_run, text)
    pieces = {ord(character): character for character in {*text, *_CODED}}
    symbols = {ord(character): piece for character in set(text) if _is_symbol(piece := _piece(character))}
    return coded.translate(pieces | symbols) if symbols else coded


def _coded_words(run: re.Match[str]) -> Iterator[Word]:
    """Yield the coded words of a run without spaces; all have its place if NFKC changes its length."""
    start, end = run.span()
    coded = _coded_run(run).split()
    if len(coded) != end - start:
        yield from (Word(pair, start, end) for pair in coded)
    else:
        yield from (Word(pair, at, min(at + 2, end)) for at, pair in enumerate(coded, start))


def _coded_run(run: re.Match[str]) -> str:
    """Return a run without spaces as coded words, with a space before and after each."""
    digits = unicodedata.normalize("NFKC", run[0]).encode("utf-32-be").hex()
    codes = [digits[end - _DIGITS : end] for end in range(8, len(digits) + 1, 8)]
    pairs = map(str.__add__, codes, (*codes[1:], ""))
    return f" {_CODE}" + f"  {_CODE}".join(pairs) + " "


def _spaced_words(text: str, begin: int, end: int) -> Iterator[Word]:
    """Yield the words between two places of a text that hold no run without spaces."""
    word, start = "", begin
    for place in range(begin, end):
        piece = _piece(text[place])
        if piece[:1] != " ":
            start = start if word else place
            word += piece
            continue
        if word:
            yield Word(word, start, place)
            word = ""
        if _is_symbol(piece):
            yield Word(piece.strip(), place, place + 1)
    if word:
        yield Word(word, start, end)


def _is_symbol(piece: str) -> bool:
    return piece.startswith(f" {_CODE}")


@lru_cache(maxsize=4_096)
def _piece(character: str) -> str:
    """Return the text that a character adds to its word; a space or a coded word in spaces ends it."""
    category = unicodedata.category(character)
    if category == "Mn" and _FIRST_MARK <= character <= _LAST_MARK:
        return ""
    if category[0] == "S" and not character.isascii():
        return f" {_CODE}{ord(character):0{_DIGITS}x} "
    if category[0] not in "LN" and category != "Co":
        return " "
    lower = character.casefold() if len(character.casefold()) == 1 else character.lower()
    base = unicodedata.normalize("NFD", lower)[0]
    return base if base.isascii() else lower
