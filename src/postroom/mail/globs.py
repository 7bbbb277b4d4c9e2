"""Read reservation patterns and decide, exactly, whether two of them can name a common path.

This module owns the meaning of a pattern. It knows nothing of agents, leases, stores or the file system.

A path is relative to the project root: names joined by single slashes. A pattern is anchored at the root:

    src/app.py     no wildcard: that path and, should it be a folder, everything below it
    src/           everything below src (kept as src/**)
    ?  *           one character; any run of characters; inside one name, a leading dot included
    [ab] [a-z]     one character of the set; [!a] and [^a] one that is not in it; never a slash
    [[]  [*]       a set of one character is that character, so it also takes the meaning from [ * ? ~
    a/**/b  **/b   ** as a whole name stands for any number of names, none included
    a/**           everything inside a, but not a itself
    a**b           two stars inside a name are one star
    {a,b} !a #a    plain text: there are no alternatives, no negation and no comments
    port:8080      a resource, no file: a scheme of two or more characters, a colon, then no slash.
                   It matches the same text only. A file of that name is written ./port:8080

A wildcard pattern matches what it says and no tree below it. A name does not tell a file from a folder, so
src/app.py and **/*.js overlap: both cover src/app.py/x.js. Any text without a slash counts as a name. Where
the file system ignores case, patterns and paths are compared folded, character by character (so that ? stays
one character); all patterns of one comparison must be read with the same `case_sensitive`.

Overlap asks whether the product of two automata accepts anything. Both automata are chains whose only loops
are gaps (`*` between characters, `**` between names), and for chains the answer needs no search:

    gap and gap      each gap can swallow the other's middle: only what stands before the first gap and
                     after the last one can disagree
    gap and no gap   the pieces between gaps are placed leftmost, one after the other, along the other chain
    no gap at all    position by position

The same rule decides characters within a name and names within a path. A pattern without wildcards is a chain
of names with a gap at its end.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, reduce
from itertools import pairwise, takewhile
from operator import or_
from typing import TypeAlias, TypeVar

from postroom.contracts.errors import InvalidPattern

MAX_LENGTH = 1024
# One comparison costs at most about the wildcards of one side times the length of the other: with these two
# limits the slowest pair known (benchmarks/globs.py) takes 3 ms, the usual pair under 1 us.
MAX_WILDCARDS = 32

_Ranges: TypeAlias = tuple[tuple[int, int], ...]
_Character: TypeAlias = str | _Ranges
_Piece: TypeAlias = Sequence[_Character]
_Unit = TypeVar("_Unit", bound="_Character | _Name")
_Agree: TypeAlias = Callable[[_Unit, _Unit], bool]

_LAST_CHARACTER = 0x10FFFF
_LAST_CASED = 0x1FFFF  # no character above this one has another case; a test watches it


@dataclass(frozen=True, slots=True, eq=False)
class _Glob:
    """A name with wildcards.

    `pieces` are what stands between its stars; `start` and `end` the text before its first wildcard and after
    its last. `is_plain`: it has a star, and no other wildcard before the first or after the last star;
    `is_text`: nor between them.
    """

    pieces: tuple[_Piece, ...]
    start: str
    end: str
    is_plain: bool
    is_text: bool


_Name: TypeAlias = str | _Glob


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What comparisons read. Texts are those of the path written as `/path/`, so that names end with a slash.

    Every path begins with `start`, ends with `end`, and its last name begins with `last`: three necessary
    conditions. Between two shapes of one `depth` (names; 0 where there is a gap) that both are `is_plain`
    they are sufficient too.
    """

    pieces: tuple[tuple[_Name, ...], ...]
    start: str
    end: str
    last: str
    depth: int
    is_plain: bool
    folds_case: bool


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that was read and found valid; made by `parse_pattern` only.

    `text` reads back as the same pattern. `prefix` holds the leading names without wildcards (for a resource
    its text), folded where case is ignored: two patterns overlap only if the prefix of one is a whole-name
    prefix of the other's. `shape` is for this module.
    """

    text: str
    prefix: str
    is_literal: bool
    is_resource: bool
    shape: _Shape = field(repr=False, compare=False)


def parse_pattern(raw: str, *, case_sensitive: bool = True) -> Pattern:
    """Return the pattern that `raw` stands for; reading the result's `text` again returns the same.

    A leading `./`, double slashes and repeated stars are dropped; a trailing slash means everything below.

    Raises:
        InvalidPattern: `raw` is blank, too long, absolute, of another file system's spelling, leaves the
            project root, or is no well-formed pattern; the message says which.
    """
    return _parse(raw, case_sensitive)


def prefixes_of(prefix: str) -> tuple[str, ...]:
    """Return every whole-name prefix of `prefix`, shortest first, '' and itself included."""
    names = prefix.split("/") if prefix else []
    return tuple("/".join(names[:count]) for count in range(len(names) + 1))


def matches(pattern: Pattern, path: str) -> bool:
    """Whether `pattern` covers `path`, a path from the project root without `.`, `..` or empty names."""
    if pattern.is_resource:
        return path == pattern.text
    names = _folded(path).split("/") if pattern.shape.folds_case else path.split("/")
    return "" not in names and _chains_meet(pattern.shape.pieces, (tuple(names),), _names_meet)


def overlap(a: Pattern, b: Pattern) -> bool:
    """Whether some path is covered by both patterns; the order of the two does not matter."""
    return _shapes_meet(a.shape, b.shape)


def overlapping(new: Pattern, live: Sequence[Pattern]) -> list[int]:
    """Return the positions in `live` of the patterns that overlap `new`, in order."""
    shape, start = new.shape, new.shape.start
    return [
        position
        for position, other in enumerate(live)
        if (other.shape.start.startswith(start) or start.startswith(other.shape.start))
        and _shapes_meet(shape, other.shape)
    ]


# Comparing


def _shapes_meet(a: _Shape, b: _Shape) -> bool:
    # No cache of decided pairs: an entry costs about what deciding does, but for pairs made to be slow.
    if not (
        (a.start.startswith(b.start) or b.start.startswith(a.start))
        and (a.end.endswith(b.end) or b.end.endswith(a.end))
        and (a.last.startswith(b.last) or b.last.startswith(a.last))
    ):
        return False
    if a.is_plain and b.is_plain and a.depth == b.depth:
        return True
    return _chains_meet(a.pieces, b.pieces, _names_meet)


def _names_meet(a: _Name, b: _Name) -> bool:
    if isinstance(a, str):
        return a == b if isinstance(b, str) else _glob_takes(b, a)
    if isinstance(b, str):
        return _glob_takes(a, b)
    if not (
        (a.start.startswith(b.start) or b.start.startswith(a.start))
        and (a.end.endswith(b.end) or b.end.endswith(a.end))
    ):
        return False
    return (a.is_plain and b.is_plain) or _chains_meet(a.pieces, b.pieces, _characters_meet)


def _glob_takes(glob: _Glob, name: str) -> bool:
    if not (name.startswith(glob.start) and name.endswith(glob.end)):
        return False
    if not glob.is_text:
        return _chains_meet(glob.pieces, (name,), _characters_meet)
    first, room = len(glob.start), len(name) - len(glob.end)
    for piece in glob.pieces[1:-1]:
        found = name.find(str(piece), first)
        if found < 0:
            return False
        first = found + len(piece)
    return first <= room


def _characters_meet(a: _Character, b: _Character) -> bool:
    if isinstance(a, str):
        return a == b if isinstance(b, str) else _holds(b, ord(a))
    return _holds(a, ord(b)) if isinstance(b, str) else _share(a, b)


def _chains_meet(a: Sequence[Sequence[_Unit]], b: Sequence[Sequence[_Unit]], agree: _Agree[_Unit]) -> bool:
    """Whether one sequence fits both chains; the module's docstring says why these cases are all."""
    if len(a) > 1 and len(b) > 1:
        return all(map(agree, a[0], b[0])) and all(map(agree, reversed(a[-1]), reversed(b[-1])))
    if len(a) > 1:
        return _fits(a, b[0], agree)
    if len(b) > 1:
        return _fits(b, a[0], agree)
    return len(a[0]) == len(b[0]) and all(map(agree, a[0], b[0]))


def _fits(chain: Sequence[Sequence[_Unit]], row: Sequence[_Unit], agree: _Agree[_Unit]) -> bool:
    head, tail = chain[0], chain[-1]
    room = len(row) - len(tail)
    if len(head) > room or not (all(map(agree, head, row)) and all(map(agree, tail, row[room:]))):
        return False
    return len(chain) == 2 or _follow(chain[1:-1], row[len(head) : room], agree)


def _follow(pieces: Sequence[Sequence[_Unit]], row: Sequence[_Unit], agree: _Agree[_Unit]) -> bool:
    """Whether the pieces find places along `row`, one after the other.

    Sets of positions are integers, one bit a position: a piece of n units is placed in n steps, however often
    it nearly fits.
    """
    positions: dict[_Unit, int] = {}
    for position, unit in enumerate(row):
        positions[unit] = positions.get(unit, 0) | 1 << position
    wild = [unit for unit in positions if not isinstance(unit, str)]
    places: dict[_Unit, int] = {}
    first = 0
    for piece in pieces:
        starts = -1 << first
        for offset, unit in enumerate(piece):
            if unit not in places:
                others = wild if isinstance(unit, str) else positions
                sets = (positions[other] for other in others if agree(unit, other))
                places[unit] = reduce(or_, sets, positions.get(unit, 0))
            starts &= places[unit] >> offset
            if not starts:
                return False
        first = (starts & -starts).bit_length() - 1 + len(piece)
    return True


# Sets of characters: sorted, disjoint ranges of code points, both ends included


def _merged(ranges: Iterable[tuple[int, int]]) -> _Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _inverted(ranges: _Ranges) -> _Ranges:
    """Return every character a name may hold that is not in `ranges`: never NUL, never a slash."""
    taken = _merged([*ranges, (0, 0), (ord("/"), ord("/"))])
    gaps = [(before[1] + 1, after[0] - 1) for before, after in pairwise(taken)]
    return tuple(gaps) + (((taken[-1][1] + 1, _LAST_CHARACTER),) if taken[-1][1] < _LAST_CHARACTER else ())


def _holds(ranges: _Ranges, code: int) -> bool:
    index = bisect_right(ranges, (code, _LAST_CHARACTER)) - 1
    return index >= 0 and ranges[index][1] >= code


def _share(a: _Ranges, b: _Ranges) -> bool:
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][1] < b[j][0]:
            i += 1
        elif b[j][1] < a[i][0]:
            j += 1
        else:
            return True
    return False


_ANY: _Ranges = _inverted(())


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_folded_character, text))


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


# Reading

_SCHEME = re.compile(r"[a-z][a-z0-9+-]+:")
_WILD = re.compile(r"[*?\[]")
_LEXEME = re.compile(r"\*+|\?|\[[!^]?+\]?+[^\]]*\]|\[|[^*?\[]+")
_SET_ITEM = re.compile(r"(.)-(.)|(.)")
_EXAMPLES = "name a path, a pattern or a resource: src/app.py, src/**, port:8080"
_RELATIVE = "write it relative to the project root, with forward slashes: src/app.py or src/**"
_NOT_HOME = f"{_RELATIVE}; a file of that name is ./~name"
_NO_ESCAPES = f"{_RELATIVE}; to take the meaning from a wildcard write [*]"
_NO_SLASH = "write a resource as service:name, no slash after the colon; a path of that name as ./service:"
_REFUSED_TEXTS = (
    (re.compile(r"\A\s*\Z"), "is blank", _EXAMPLES),
    (re.compile(r"[\ud800-\udfff]"), "is not valid Unicode", "send it as UTF-8"),
    (re.compile(r"[\x00-\x1f\x7f-\x9f]"), "holds a control character", "remove it, a line end for example"),
    (re.compile(r"\\"), "holds a backslash", _NO_ESCAPES),
    (re.compile(r"\A/"), "is an absolute path", _RELATIVE),
    (re.compile(r"\A~"), "begins in a home folder", _NOT_HOME),
    (re.compile(r"\A(?:\./+)*[A-Za-z]:"), "begins with a drive letter", _RELATIVE),
    (re.compile(r"(?:\A|/)\.\.(?:/|\Z)"), "climbs with `..`", f"{_RELATIVE}; leave `..` out"),
    (re.compile(rf"\A{_SCHEME.pattern}(?:/|\Z)"), "is neither a path nor a resource", _NO_SLASH),
)


@lru_cache(maxsize=16_384)
def _parse(raw: str, case_sensitive: bool) -> Pattern:
    _check_text(raw)
    if _SCHEME.match(raw):
        return _resource(raw)
    written = _written_names(raw)
    text = "/".join(written)
    if raw.startswith("./") and (text.startswith("~") or _SCHEME.match(text)):
        text = f"./{text}"  # without it the text would be read as a home folder or a resource
    _check_length(raw, text)
    _check_wildcards(raw, written)
    names = [None if name == "**" else _name(name, case_sensitive) for name in written]
    if "." in names or ".." in names:
        raise _invalid(raw, "spells `.` or `..` with sets", "leave them out")
    literal = [name for name in takewhile(lambda name: isinstance(name, str), names) if isinstance(name, str)]
    is_literal = len(literal) == len(names)
    return Pattern(
        text=text,
        prefix="/".join(literal),
        is_literal=is_literal,
        is_resource=False,
        shape=_shape(_chain(names, is_literal), folds_case=not case_sensitive),
    )


def _resource(raw: str) -> Pattern:
    # NUL ends the text and no path begins with a colon: one such start begins another only if both are equal.
    shape = _Shape((), start=f":{raw}\0", end="", last="", depth=0, is_plain=True, folds_case=False)
    return Pattern(text=raw, prefix=raw, is_literal=True, is_resource=True, shape=shape)


def _invalid(raw: str, problem: str, remedy: str) -> InvalidPattern:
    value = raw if len(raw) <= 200 else f"{raw[:200]}..."
    value = value.encode("utf-8", "backslashreplace").decode("utf-8")  # half a surrogate pair is no JSON
    return InvalidPattern(f"the pattern {value!r} {problem}", value=value, remedy=remedy)


def _check_length(raw: str, text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise _invalid(raw, f"is longer than {MAX_LENGTH} characters", "reserve a folder above it: src/**")


def _check_text(raw: str) -> None:
    _check_length(raw, raw)
    for refused, problem, remedy in _REFUSED_TEXTS:
        if refused.search(raw):
            raise _invalid(raw, problem, remedy)


def _check_wildcards(raw: str, names: list[str]) -> None:
    wild = [
        part for name in names if _WILD.search(name) for part in _LEXEME.findall(name) if part[0] in "*?["
    ]
    if len(wild) > MAX_WILDCARDS:
        raise _invalid(raw, f"has more than {MAX_WILDCARDS} wildcards", "use fewer: one ** covers any depth")
    for part in wild:
        if part == "[":
            raise _invalid(raw, "has a [ without its ] in the same name", "write [[] for a plain [")
        if "[:" in part:
            raise _invalid(raw, "names a class of characters", "write the characters out: [a-z] or [0-9]")
        if any(low > high for low, high in _set_items(part)):
            raise _invalid(raw, "has a range that runs backwards", "write the lower character first: [a-z]")


def _written_names(raw: str) -> list[str]:
    """Return the names of a pattern in their one spelling."""
    names: list[str] = []
    parts = raw.split("/")
    for part in (*parts, "**") if parts[-1] in ("", ".") else parts:
        if part in ("", "."):
            continue
        if "**" in part:
            stars = "**" if not part.strip("*") else "*"
            part = "".join(stars if lexeme[0] == "*" else lexeme for lexeme in _LEXEME.findall(part))
        if part != "**" or names[-1:] != ["**"]:
            names.append(part)
    return names


@lru_cache(maxsize=16_384)
def _name(written: str, case_sensitive: bool) -> _Name:
    if not _WILD.search(written):
        return written if case_sensitive else _folded(written)
    pieces: list[list[_Character]] = [[]]
    for lexeme in _LEXEME.findall(written):
        if lexeme[0] == "*":
            pieces.append([])
        elif lexeme == "?":
            pieces[-1].append(_ANY)
        elif lexeme[0] == "[":
            pieces[-1].append(_set(lexeme, case_sensitive))
        else:
            pieces[-1].extend(lexeme if case_sensitive else _folded(lexeme))
    if len(pieces) == 1 and not any(isinstance(unit, tuple) for unit in pieces[0]):
        return _text_of(pieces[0])
    start, end = _text_of(pieces[0]), _text_of(reversed(pieces[-1]))[::-1]
    is_plain = len(pieces) > 1 and len(start) == len(pieces[0]) and len(end) == len(pieces[-1])
    is_text = is_plain and all(isinstance(unit, str) for piece in pieces for unit in piece)
    chain = tuple("".join(map(str, piece)) if is_text else tuple(piece) for piece in pieces)
    return _Glob(chain, start, end, is_plain, is_text)


def _text_of(units: Iterable[_Character]) -> str:
    """Return the characters that stand before the first wildcard."""
    return "".join(str(unit) for unit in takewhile(lambda unit: isinstance(unit, str), units))


def _set_items(lexeme: str) -> list[tuple[str, str]]:
    body = lexeme[2:-1] if lexeme[1:2] in ("!", "^") else lexeme[1:-1]
    return [(low or one, high or one) for low, high, one in _SET_ITEM.findall(body)]


def _set(lexeme: str, case_sensitive: bool) -> _Character:
    ranges = _merged((ord(low), ord(high)) for low, high in _set_items(lexeme))
    is_negated = lexeme[1] in "!^"
    if not is_negated and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return chr(ranges[0][0]) if case_sensitive else _folded(chr(ranges[0][0]))
    if not case_sensitive:
        ranges = _with_cases(ranges)
    return _inverted(ranges) if is_negated else _inverted(_inverted(ranges))


def _chain(names: Sequence[_Name | None], is_literal: bool) -> tuple[tuple[_Name, ...], ...]:
    """Return the names between the gaps (None)."""
    pieces: list[list[_Name]] = [[]]
    for name in names:
        if name is None:
            pieces.append([])
        else:
            pieces[-1].append(name)
    if is_literal:
        pieces.append([])
    elif names[-1] is None:
        pieces[-1].append(_name("*", True))  # `a/**` takes at least one name: a itself is not inside a
    return tuple(map(tuple, pieces))


def _shape(chain: tuple[tuple[_Name, ...], ...], *, folds_case: bool) -> _Shape:
    first, final = chain[0], chain[-1]
    has_gap = len(chain) > 1
    start = end = last = "/"
    for name in first:
        start += f"{name}/" if isinstance(name, str) else name.start
        if not isinstance(name, str):
            break
    for name in reversed(final):
        end = f"/{name}{end}" if isinstance(name, str) else name.end + end
        if not isinstance(name, str):
            break
    if final:
        last = f"/{final[-1]}/" if isinstance(final[-1], str) else f"/{final[-1].start}"
    is_plain = all(isinstance(name, str) for name in (first if has_gap else first[:-1]))
    if final:
        ends_plain = isinstance(final[-1], _Glob) and final[-1].is_plain
        is_plain = is_plain and ends_plain and not (has_gap and len(final) > 1)
    return _Shape(chain, start, end, last, 0 if has_gap else len(first), is_plain, folds_case)
