"""Splits text into the words that a search compares, the same on both engines.

A word is a sequence of letters and digits. Case, accents, vowel points and variants of a character are
folded: `Ł`, `ß`, `İ` and `٣` are compared as `l`, `ss`, `i` and `3`. Two kinds of text become coded words:

- A run of a script without spaces (Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer) becomes its pairs of
  neighbouring characters, and its last character. Each part of a run is found, also next to Latin text.
- A symbol such as an emoji is a word.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

MAX_UNSPACED: Final = 16_000
"""Maximum number of indexed characters of scripts without spaces in one text.

Each pair of them may be a separate word, and other senders wait while they are indexed. PostgreSQL finds no
phrase after about 16,382 words.
"""
_ASCII_WORD: Final = re.compile(r"[0-9A-Za-z]+")
_CODE: Final = "\uf8f0"
"""First character of a coded word, from the private use area."""
_DIGITS: Final = 5
"""Hexadecimal digits of each character of a coded word."""
_CODED_WORD: Final = re.compile(rf"{_CODE}([0-9a-f]{{{_DIGITS}}})")
_UNSPACED: Final = re.compile(
    "[\u0e01-\u0e3a\u0e40-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17d3\u3005-\u3007\u3038-\u303a\u3041-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff]+"
)
_VIRAMA: Final = 9
"""The combining class of a mark that joins two characters; without the mark the word is different."""
_SPLITS: Final = "\u200b\u200c\ufeff"
"""Invisible characters that separate words; other invisible characters belong to a word."""
_TATWEEL: Final = "\u0640"
_PLAIN: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d"}
)
"""Characters that Unicode does not decompose, in the spelling without their stroke."""


class Word(NamedTuple):
    """A word in the form that is compared, and its place in the text."""

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
    """Return the words of a text in the form that is compared, in order."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    coded = _coded(text)
    return coded.translate({ord(character): _piece(character) for character in set(coded)}).split()


def is_unspaced(word: str) -> bool:
    """Return whether a word of a query is code for characters of a script without spaces."""
    coded = _CODED_WORD.match(word)
    return coded is not None and _UNSPACED.match(chr(int(coded[1], 16))) is not None


def asked_words(text: str) -> tuple[list[str], bool]:
    """Return adjacent words to find, and whether the last word is only the start of a word."""
    found = folded(text)
    if not found or not found[-1].startswith(_CODE) or len(found[-1]) != 1 + _DIGITS:
        return list(found), False
    if len(found) > 1 and len(found[-2]) == 1 + 2 * _DIGITS and found[-2].endswith(found[-1][1:]):
        return list(found[:-1]), False  # a match may continue after this run
    return list(found), True


def indexed_text(text: str) -> str:
    """Return the words of a text for FTS5, which splits at spaces and folds ASCII only."""
    return text if text.isascii() else " ".join(folded(text))


def _coded(text: str) -> str:
    """Return a text with coded words in place of its runs without spaces, up to the index limit."""
    left = MAX_UNSPACED

    def code(run: re.Match[str]) -> str:
        nonlocal left
        part = run[0][:left]
        left -= len(part)
        return _coded_run(part) if part else " "

    return _UNSPACED.sub(code, text)


def _coded_words(run: re.Match[str]) -> Iterator[Word]:
    """Yield the coded words of a run without spaces; all have its place if NFKC changes its length."""
    start, end = run.span()
    coded = _coded_run(run[0]).split()
    if len(coded) != end - start:
        yield from (Word(pair, start, end) for pair in coded)
    else:
        yield from (Word(pair, at, min(at + 2, end)) for at, pair in enumerate(coded, start))


def _coded_run(run: str) -> str:
    """Return a run without spaces as coded words, with a space before and after each."""
    digits = unicodedata.normalize("NFKC", run).encode("utf-32-be").hex()
    codes = [digits[end - _DIGITS : end] for end in range(8, len(digits) + 1, 8)]
    pairs = map(str.__add__, codes, (*codes[1:], ""))
    return f" {_CODE}" + f"  {_CODE}".join(pairs) + " "


def _spaced_words(text: str, begin: int, end: int) -> Iterator[Word]:
    """Yield the words between two places of a text, which contains no run without spaces there."""
    word, start = "", begin
    for place in range(begin, end):
        for at, part in enumerate(re.split("( )", _piece(text[place]))):
            if part == " ":
                if word:
                    yield Word(word, start, place + 1 if at else place)
                word = ""
            elif part:
                start = start if word else place
                word += part
    if word:
        yield Word(word, start, end)


@lru_cache(maxsize=4_096)
def _piece(character: str) -> str:
    """Return the text that a character adds to its word; a space or a coded word in spaces ends it."""
    if unicodedata.category(character)[0] == "S" and not character.isascii():
        return f" {_CODE}{ord(character):0{_DIGITS}x} "
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(map(_part, folded)).translate(_PLAIN)


def _part(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.digit(character))
    if category == "Cf" and character not in _SPLITS:
        return ""
    if category[0] == "M":
        is_accent = unicodedata.combining(character) not in (0, _VIRAMA)
        is_selector = unicodedata.name(character, "").startswith("VARIATION SELECTOR")
        return "" if is_accent or is_selector or category == "Me" else character
    if character == _TATWEEL:
        return ""
    return character if category[0] in "LN" or category == "Co" else " "
