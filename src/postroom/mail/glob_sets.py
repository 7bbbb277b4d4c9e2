"""Reads one name of a pattern: text, or a set of names written with `*`, `?` and sets of characters.

A set of characters is stored as sorted, disjoint ranges of code points, both ends included. Folding, for file
systems that ignore case, works character by character and never changes the length of a text, so that `?`
stays one character.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TypeAlias

_Ranges: TypeAlias = tuple[tuple[int, int], ...]
Character: TypeAlias = str | _Ranges

_LAST_CHARACTER = 0x10FFFF
_LAST_CASED = 0x1FFFF  # no character above this one has another case; a test watches it
_NEVER = 1 << 30  # above every length
_LEXEME = re.compile(r"\*+|\?|\[[!^]?+\]?+[^\]/]*\]|\[|[^*?\[]+")
_SET_ITEM = re.compile(r"(.)-(.)|(.)")


@dataclass(frozen=True, slots=True, eq=False)
class Glob:
    """A name with wildcards.

    `pieces` are the parts between its stars; `start` and `end` the text before its first wildcard and after
    its last. `head` is the length of `start` if a star follows it, `tail` that of `end` if a star precedes
    it; otherwise both exceed every length. `is_text` is true if it has no wildcards except stars.
    """

    pieces: tuple[Sequence[Character], ...]
    start: str
    end: str
    head: int
    tail: int
    is_text: bool


Name: TypeAlias = str | Glob


@lru_cache(maxsize=16_384)
def read_name(written: str, case_sensitive: bool) -> Name:
    """Return the meaning of a written name: text (folded if case is ignored), or a set of names."""
    if "[" not in written and "?" not in written:
        text = written if case_sensitive else folded(written)
        if "*" not in text:
            return text
        runs = tuple(text.split("*"))
        return Glob(runs, runs[0], runs[-1], len(runs[0]), len(runs[-1]), is_text=True)
    pieces: list[list[Character]] = [[]]
    start, end, is_text = None, "", True
    for lexeme in lexemes(written):
        unit = _unit(lexeme, case_sensitive)
        if isinstance(unit, str):
            pieces[-1].extend(unit)
            end += unit
            continue
        start, end = end if start is None else start, ""
        if unit is None:
            pieces.append([])
        else:
            pieces[-1].append(unit)
            is_text = False
    if start is None:
        return end
    head = len(start) if len(start) == len(pieces[0]) else _NEVER
    tail = len(end) if len(end) == len(pieces[-1]) else _NEVER
    chain = tuple(["".join(map(str, piece)) for piece in pieces] if is_text else map(tuple, pieces))
    return Glob(chain, start, end, head, tail, is_text)


def lexemes(written: str) -> list[str]:
    """Return the parts of names: runs of text, `?`, stars, sets, and a `[` that opens no set in its name."""
    return _LEXEME.findall(written)


@lru_cache(maxsize=1024)
def runs_backwards(written: str) -> bool:
    """Return whether a written set (`[z-a]`) has a range whose first character is the higher one."""
    return any(low > high for low, high in _items(written))


def characters_meet(a: Character, b: Character) -> bool:
    """Return whether two characters, or sets of them, have a character in common."""
    if isinstance(a, str):
        return a == b if isinstance(b, str) else _holds(b, ord(a))
    return _holds(a, ord(b)) if isinstance(b, str) else _share(a, b)


def folded(text: str) -> str:
    """Return the text that all its spellings in other cases share, with as many characters."""
    return text.lower() if text.isascii() else "".join(map(_folded_character, text))


def _unit(lexeme: str, case_sensitive: bool) -> Character | None:
    """Return the text or the set of a lexeme; None for stars."""
    if lexeme[0] == "*":
        return None
    if lexeme == "?":
        return _ANY
    if lexeme[0] == "[":
        return _set(lexeme, case_sensitive)
    return lexeme if case_sensitive else folded(lexeme)


# Sets of characters


@lru_cache(maxsize=1024)
def _set(written: str, case_sensitive: bool) -> str | _Ranges:
    """Return the contents of a written set (`[a-z]`, `[!ab]`); a set of one character is that character."""
    ranges = _merged((ord(low), ord(high)) for low, high in _items(written))
    is_negated = written[1] in "!^"
    if not is_negated and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return chr(ranges[0][0]) if case_sensitive else folded(chr(ranges[0][0]))
    if not case_sensitive:
        ranges = _with_cases(ranges)
    return _inverted(ranges) if is_negated else _inverted(_inverted(ranges))


def _holds(ranges: _Ranges, code: int) -> bool:
    """Return whether a set contains a character."""
    index = bisect_right(ranges, (code, _LAST_CHARACTER)) - 1
    return index >= 0 and ranges[index][1] >= code


def _share(a: _Ranges, b: _Ranges) -> bool:
    """Return whether both sets share a character."""
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][1] < b[j][0]:
            i += 1
        elif b[j][1] < a[i][0]:
            j += 1
        else:
            return True
    return False


def _items(written: str) -> list[tuple[str, str]]:
    body = written[2:-1] if written[1:2] in ("!", "^") else written[1:-1]
    return [(low or one, high or one) for low, high, one in _SET_ITEM.findall(body)]


def _merged(ranges: Iterable[tuple[int, int]]) -> _Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _inverted(ranges: _Ranges) -> _Ranges:
    """Return every permitted character of a name that is not in `ranges`: never NUL, never a slash."""
    taken = _merged([*ranges, (0, 0), (ord("/"), ord("/"))])
    gaps = [(before[1] + 1, after[0] - 1) for before, after in pairwise(taken)]
    return tuple(gaps) + (((taken[-1][1] + 1, _LAST_CHARACTER),) if taken[-1][1] < _LAST_CHARACTER else ())


@lru_cache(maxsize=4096)
def _folded_character(character: str) -> str:
    # The full folding of some characters is longer (one ß, two s): they keep a form of one character.
    for form in (character.casefold(), character.lower()):
        if len(form) == 1:
            return form
    return character


@cache
def _cases() -> dict[str, tuple[int, ...]]:
    """Return, for every folded character that has other cases, all of them."""
    groups: dict[str, list[int]] = {}
    for code in range(_LAST_CASED + 1):
        form = _folded_character.__wrapped__(chr(code))
        if form != chr(code):
            groups.setdefault(form, [ord(form)]).append(code)
    return {form: tuple(codes) for form, codes in groups.items()}


def _with_cases(ranges: _Ranges) -> _Ranges:
    """Return the set with every other case of its characters."""
    more = [codes for codes in _cases().values() if any(_holds(ranges, code) for code in codes)]
    return _merged([*ranges, *((code, code) for codes in more for code in codes)])


_ANY = _inverted(())
