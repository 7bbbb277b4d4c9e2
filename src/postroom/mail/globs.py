"""Reads reservation patterns and decides whether two of them overlap.

This module defines the meaning of patterns, without agents, leases, stores or the file system.

A path is relative to the project root, and consists of names joined by single slashes. A pattern is anchored
at the root:

    src/app.py        no wildcard: that path and, if it is a folder, everything below it
    src/              everything below src; stored as src/**
    ? *               one character; any number of characters; both within a name, even a leading dot
    [ab] [a-z]        one character of the set; [!a] and [^a] match one character that is not in the set;
                      a set never matches a slash
    [[] [*]           a set of one character is that character, so [ * ? ~ lose their special meaning
    a/**/b **/b **    ** as a whole name matches any number of names, even none
    a/**              everything inside a, but not a itself
    a**b              two stars within a name count as one star
    #a                plain text: there are no comments
    port:8080         a resource, not a file: a scheme of two or more characters, a colon, then no slash;
                      a resource matches only the same text, and a file of that name is written ./port:8080

A pattern with wildcards (a glob) matches only the paths that it describes, and not the trees below them. Any
text without a slash counts as a name. `spelled` also accepts other notations that callers use, such as {a,b}.
If the file system ignores case, patterns and paths are case-folded character by character before the
comparison, so that ? still matches one character. All patterns of a comparison must be parsed with the same
`case_sensitive`.

Two globs overlap if at least one path matches both. A pattern without wildcards (a literal) may name a file
or a folder, so it has its own rules:

    literal and literal   overlap if they are equal or one lies below the other: src and src/app.py
    literal and glob      overlap if the glob matches the literal itself, or if the names before the glob's
                          first wildcard are the literal or lie below it: then all its matches lie below.
                          src meets src/*.py and src/app/**/*.py; src/app.py does not meet **/*.js

Therefore the literal src does not overlap **/*.py. To reserve a whole folder, write src/ or src/**.

Two globs overlap if the product of two automata accepts any input. The automata are chains whose only loops
are gaps (`*` between characters, `**` between names). For such chains, no search is needed:

    gap and gap      each gap can match the other's middle: only the parts before the first gap and after
                     the last one can conflict
    gap and no gap   the pieces between gaps are placed leftmost, one after the other, along the other chain
    no gap at all    position by position

The same rule applies to the characters of a name and to the names of a path. Every path has a last name, and
so has every pattern (`a/**` is `a/**/*`). Last names and the folders above them are compared separately. Each
pair of folders is compared once for all active patterns.

A name in a pattern is plain text, or a set of names that is written with `*`, `?` and character classes.

A character class is stored as sorted, disjoint ranges of code points that include both ends. Case folding
never changes the length of a text.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, reduce
from itertools import islice, pairwise
from operator import or_
from typing import Final, TypeAlias, TypeVar

from postroom.contracts.errors import InvalidPattern

_Ranges: TypeAlias = tuple[tuple[int, int], ...]
Character: TypeAlias = str | _Ranges

_LAST_CHARACTER = 0x10FFFF
_LAST_CASED = 0x1FFFF  # no character above this one has another case, as a test checks
_NEVER = 1 << 30  # greater than every possible length
_LEXEME = re.compile(r"\*+|\?|\[[!^]?+\]?+[^\]/]*\]|\[|[^*?\[]+")
_SET_ITEM = re.compile(r"(.)-(.)|(.)")


@dataclass(frozen=True, slots=True, eq=False)
class Glob:
    """A file name pattern with wildcards, split at the stars."""

    pieces: tuple[Sequence[Character], ...]
    start: str
    end: str
    head: int
    tail: int
    is_text: bool


Name: TypeAlias = str | Glob


@lru_cache(maxsize=16_384)
def read_name(written: str, case_sensitive: bool) -> Name:
    """Return the text, or the set of names, that one path segment of a pattern matches.

    Text is case-folded unless `case_sensitive` is true.
    """
    if "[" not in written and "?" not in written:
        text = written if case_sensitive else folded(written)
        if "*" not in text:
            return text
        runs = tuple(text.split("*"))
        return Glob(runs, runs[0], runs[-1], len(runs[0]), len(runs[-1]), is_text=True)
    pieces: list[list[Character]] = [[]]
    start, end, is_text = None, "", True
    for lexeme in lexemes(written):
        unit: Character | None
        if lexeme[0] == "*":
            unit = None
        elif lexeme == "?":
            unit = _ANY
        elif lexeme[0] == "[":
            unit = _set(lexeme, case_sensitive)
        else:
            unit = lexeme if case_sensitive else folded(lexeme)
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
    """Split a file name pattern into plain text, `?`, stars, character classes and unclosed brackets."""
    return _LEXEME.findall(written)


@lru_cache(maxsize=1024)
def runs_backwards(written: str) -> bool:
    """Return whether a character class contains a reversed range, such as `[z-a]`."""
    return any(low > high for low, high in _items(written))


def characters_meet(a: Character, b: Character) -> bool:
    """Return whether two characters or character classes have a character in common."""
    if isinstance(a, str):
        return a == b if isinstance(b, str) else _holds(b, ord(a))
    if isinstance(b, str):
        return _holds(a, ord(b))
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][1] < b[j][0]:
            i += 1
        elif b[j][1] < a[i][0]:
            j += 1
        else:
            return True
    return False


def folded(text: str) -> str:
    """Return the text case-folded, without changing the number of characters."""
    return text.lower() if text.isascii() else "".join(map(_folded_character, text))


# Sets of characters


@lru_cache(maxsize=1024)
def _set(written: str, case_sensitive: bool) -> str | _Ranges:
    """Return the character or character class that a text such as `[a-z]` or `[!ab]` describes."""
    ranges = _merge_ranges((ord(low), ord(high)) for low, high in _items(written))
    is_negated = written[1] in "!^"
    if not is_negated and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return chr(ranges[0][0]) if case_sensitive else folded(chr(ranges[0][0]))
    if not case_sensitive:
        # Add all case variants of the characters in the class.
        more = [codes for codes in _cases().values() if any(_holds(ranges, code) for code in codes)]
        ranges = _merge_ranges([*ranges, *((code, code) for codes in more for code in codes)])
    return _invert_ranges(ranges) if is_negated else _invert_ranges(_invert_ranges(ranges))


def _holds(ranges: _Ranges, code: int) -> bool:
    index = bisect_right(ranges, (code, _LAST_CHARACTER)) - 1
    return index >= 0 and ranges[index][1] >= code


def _items(written: str) -> list[tuple[str, str]]:
    body = written[2:-1] if written[1:2] in ("!", "^") else written[1:-1]
    return [(low or item, high or item) for low, high, item in _SET_ITEM.findall(body)]


def _merge_ranges(ranges: Iterable[tuple[int, int]]) -> _Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _invert_ranges(ranges: _Ranges) -> _Ranges:
    """Return all characters outside `ranges` that a file name may contain."""
    taken = _merge_ranges([*ranges, (0, 0), (ord("/"), ord("/"))])
    gaps = [(before[1] + 1, after[0] - 1) for before, after in pairwise(taken)]
    return tuple(gaps) + (((taken[-1][1] + 1, _LAST_CHARACTER),) if taken[-1][1] < _LAST_CHARACTER else ())


@lru_cache(maxsize=4096)
def _folded_character(character: str) -> str:
    # Full case folding makes some texts longer (ß becomes ss). Such characters keep a form with one
    # character.
    for form in (character.casefold(), character.lower()):
        if len(form) == 1:
            return form
    return character


@cache
def _cases() -> dict[str, tuple[int, ...]]:
    groups: dict[str, list[int]] = {}
    for code in range(_LAST_CASED + 1):
        form = _folded_character.__wrapped__(chr(code))
        if form != chr(code):
            groups.setdefault(form, [ord(form)]).append(code)
    return {form: tuple(codes) for form, codes in groups.items()}


_ANY = _invert_ranges(())


MAX_LENGTH = 1024
# The cost of a comparison is at most about the number of wildcards in one pattern times the length of the
# other. With these limits, the slowest known pair (benchmarks/globs.py) takes 3 ms, and a usual pair takes
# less than 1 us.
MAX_WILDCARDS = 32

MAX_ALTERNATIVES = 100
"""Maximum number of patterns to which a text with braces can expand."""
_LINE = r"L?\d{1,7}(?:C\d{1,7})?"
_SPAN = rf"{_LINE}(?: ?(?:[-\u2013:,]|\.\.) ?{_LINE}){{0,3}}"
_LINES = re.compile(
    rf"(?P<path>.+?)(?:: ?(?:lines? ?)?{_SPAN}|#L(?=\d){_SPAN}|,? {{0,3}}[( ](?:lines? ?|L(?=\d)){_SPAN}\)?)",
    re.IGNORECASE,
)
"""Matches a path with line numbers: `a.py:10-20`, `a.py:10:5`, `a.py#L10-L20`, `a.py (lines 10-20)`."""
_BETWEEN_PATHS = re.compile(r"\s*[;|]\s*|\s+(?:(?:and|&|\+)\s+)?", re.IGNORECASE)
_ENDS_AS_PATH = re.compile(r"[\w*)\]}]\.[A-Za-z]\w{0,7}\Z|[/*]\Z")
"""Matches the end of a path: an extension, a slash or a star. A text with several such parts is a list."""
_LISTS = ",;\"'"
_QUOTED = re.compile(r"([\"'`])(?P<text>(?:(?!\1).)*)\1", re.DOTALL)
_AROUND = "\"'` "
_EXCLUDES = re.compile(r"(?:\A|[{,])!")

_SHORT = 16  # up to this length, it is faster to try each position, and partial matches cost little
_Unit = TypeVar("_Unit", bound="Character | Name")
_Agree: TypeAlias = Callable[[_Unit, _Unit], bool]


@dataclass(frozen=True, slots=True, eq=False)
class _Folders:
    """The folder part of a pattern, split at each `**`."""

    pieces: tuple[tuple[Name, ...], ...]
    start: str
    is_literal: bool


@dataclass(frozen=True, slots=True)
class Pattern:
    """A valid pattern for file paths or resources, created by `parse_pattern`.

    `text` is the normalised pattern. `prefix` is the part of the path before the first name with a wildcard.
    For a resource, `prefix` is the whole text.
    """

    text: str
    prefix: str
    is_literal: bool
    is_resource: bool
    start: str = field(repr=False, compare=False)
    folders: _Folders = field(repr=False, compare=False)
    last: Name = field(repr=False, compare=False)
    folds_case: bool = field(repr=False, compare=False)


def parse_pattern(raw: str, *, case_sensitive: bool = True) -> Pattern:
    """Parse a pattern.

    Normalisation removes a leading `./`, double slashes and repeated stars. A trailing slash in a pattern
    matches everything below the folder.

    Raises:
        InvalidPattern: `raw` is blank, too long, absolute, malformed or in the notation of another file
            system, or leaves the project root.
    """
    return _parse(raw, case_sensitive)


def spelled(raw: str) -> list[str]:
    """Return the patterns in a caller's text, in Unicode NFC.

    Braces such as `{a,b}` produce one pattern per alternative.

    Raises:
        InvalidPattern: The text excludes files (`!a`), ends with line numbers, lists several paths, or means
            more than 100 patterns.
    """
    text = unicodedata.normalize("NFC", raw).strip() or raw
    while quoted := _QUOTED.fullmatch(text):
        text = quoted["text"].strip()
    _refuse_written_lists(raw, text)
    results = list(islice(_alternatives(text), MAX_ALTERNATIVES + 1))
    if len(results) > MAX_ALTERNATIVES:
        raise InvalidPattern(
            f"the pattern {raw[:200]!r} expands to more than {MAX_ALTERNATIVES} patterns",
            value=raw,
            remedy="use a wildcard, such as src/**",
        )
    if text.startswith("!") or (len(results) > 1 and _EXCLUDES.search(text)):
        raise InvalidPattern(
            f"the pattern {raw[:200]!r} begins a name with '!', but a pattern cannot exclude files",
            value=raw,
            remedy="reserve only the files that you edit; for a file with this name, write './!name'",
        )
    for value in results:
        _refuse_lines_and_lists(raw, value)
    return results


def _refuse_lines_and_lists(raw: str, text: str) -> None:
    """Raise an error if a pattern ends with line numbers, or lists several paths.

    Raises:
        InvalidPattern: The text has one of these forms. The remedy names the paths.
    """
    is_resource = _SCHEME.match(text.removeprefix("./")) and "/" not in text.removeprefix("./")
    if not is_resource and len(text) <= MAX_LENGTH and (lines := _LINES.fullmatch(text)):
        path = lines["path"][:200].strip(_AROUND)
        raise InvalidPattern(
            f"the pattern {raw[:200]!r} ends with line numbers, but a reservation covers whole files",
            value=raw,
            remedy=f"reserve {path!r}; if the file's name really ends like this, write ? in place of : or #",
        )
    paths = [part.strip(_AROUND) for part in re.split(r",(?:\s|\Z)", text)]
    if len(paths) > 1:
        raise InvalidPattern(
            f"the pattern {raw[:200]!r} has a comma before a space, but a pattern is one path",
            value=raw,
            remedy=(
                f"send a list: [{_paths_text(paths)}]; if the file's name really contains this, write ? in "
                f"place of the space"
            ),
        )
    paths = [part.strip(_AROUND) for part in _BETWEEN_PATHS.split(text)]
    if len(paths) > 1 and all(map(_ENDS_AS_PATH.search, paths)):
        raise InvalidPattern(
            f"the pattern {raw[:200]!r} looks like {len(paths)} paths, but a pattern is one path",
            value=raw,
            remedy=(
                f"send a list: [{_paths_text(paths)}]; "
                "if a file's name really has this form, write ? in place of each separator"
            ),
        )


def _refuse_written_lists(raw: str, text: str) -> None:
    """Raise an error if the text is a list in brackets, such as `[README.md]`.

    Raises:
        InvalidPattern: Brackets around the whole text cannot mean a set of characters or a name.
    """
    inner = text[1:-1]
    match text[:1] + text[-1:]:
        case "[]":
            singles = re.sub(r".-.", "", inner)
            is_word = len(singles) > 2 and list(singles) != sorted(set(singles)) and inner[0] not in "!^"
            is_list = (is_word and any(map(str.isalnum, singles))) or "/" in inner
        case "()":
            is_list = bool(_ENDS_AS_PATH.search(inner)) or bool(set(inner) & set(_LISTS))
        case "{}":
            is_list = "," not in inner and (
                bool(set(inner) & set("/'\"")) or bool(_ENDS_AS_PATH.search(inner))
            )
        case _:
            return
    if is_list and not set(inner) & set("[](){}"):
        paths = [part.strip(_AROUND) for part in re.split("[,;]", inner)]
        raise InvalidPattern(
            f"the pattern {raw[:200]!r} looks like a list, but a pattern is one path",
            value=raw,
            remedy=f"send a list: [{_paths_text(paths)}]; write ./ before the pattern to use it unchanged",
        )


def _paths_text(paths: Sequence[str]) -> str:
    return ", ".join(f'"{path}"' for path in paths if path)[:400]


def _alternatives(text: str) -> Iterator[str]:
    open_groups: list[list[int]] = []
    groups: list[list[int]] = []
    for match in re.finditer(r"[{},]", text):
        if match[0] == "{":
            open_groups.append([match.start()])
        elif open_groups:
            open_groups[-1].append(match.start())
            if (
                match[0] == "}"
                and len(group := open_groups.pop()) > 2
                and text[group[0] - 1 : group[0]] != "["
            ):
                groups.append(group)
    if not groups or len(groups) > MAX_ALTERNATIVES:
        yield from [text] * (len(groups) + 1)
        return
    start, *cuts, end = min(groups)
    for before, behind in pairwise([start, *cuts, end]):
        yield from _alternatives(text[:start] + text[before + 1 : behind].strip() + text[end + 1 :])


def list_prefixes(prefix: str) -> tuple[str, ...]:
    """Return all parent prefixes of a prefix, from "" to the prefix, shortest first."""
    names = prefix.split("/") if prefix else []
    return tuple("/".join(names[:count]) for count in range(len(names) + 1))


def matches(pattern: Pattern, path: str) -> bool:
    """Return whether a pattern covers a path, which is relative to the project root.

    A pattern without wildcards covers the path that it names, and all paths inside if the path is a folder.
    """
    if pattern.is_resource:
        return path == pattern.text
    names = (folded(path) if pattern.folds_case else path).split("/")
    if "" in names:
        return False
    if pattern.is_literal:
        return "/".join(("", *names, "")).startswith(pattern.start)
    above = (tuple(names[:-1]),)
    return _names_meet(pattern.last, names[-1]) and _chains_meet(pattern.folders.pieces, above, _names_meet)


def covers(pattern: Pattern, held: Pattern) -> bool:
    """Return whether `pattern` covers every path that `held` covers, as `src/**` covers `src/*.py`.

    A pattern with character classes covers only the identical pattern.
    """
    if (
        pattern.text == held.text
        or held.is_resource
        or pattern.is_resource
        or "[" in held.text + pattern.text
    ):
        return pattern.text == held.text
    if held.is_literal:
        return matches(pattern, held.text) or matches(pattern, f"{held.text}/{_NOBODYS}/{_NOBODYS}")
    # Try a path with short names and a path with long names, each of which `held` covers.
    *above, last = held.text.split("/")
    for gap, run in (([], 3), ([_NOBODYS] * 3, 41)):
        names = [part for name in above for part in (gap if name == "**" else [name])]
        names += (gap or [_NOBODYS]) if last == "**" else [last]
        sample = re.sub(r"\*+", _NOBODYS * run, "/".join(names)).replace("?", _NOBODYS)
        if not matches(pattern, sample):
            return False
    return True


_NOBODYS: Final = "\ue000"
"""A private-use character of Unicode, which no pattern contains. Only wildcards match this character."""


def overlap(a: Pattern, b: Pattern) -> bool:
    """Return whether two patterns can match a common path."""
    return bool(overlapping(a, (b,)))


def overlapping(new: Pattern, live: Sequence[Pattern]) -> list[int]:
    """Return the positions in `live` of the patterns that overlap `new`, in order."""
    start = new.start
    decided: dict[_Folders, bool] = {}
    return [
        position
        for position, other in enumerate(live)
        if (other.start.startswith(start) or start.startswith(other.start)) and _meet(new, other, decided)
    ]


# Comparing


def _meet(new: Pattern, other: Pattern, decided: dict[_Folders, bool]) -> bool:
    if new.is_literal and other.start.startswith(new.start):
        return True
    if other.is_literal and new.start.startswith(other.start):
        return True
    if not _names_meet(new.last, other.last):
        return False
    meets = decided.get(other.folders)
    if meets is None:
        meets = decided[other.folders] = _chains_meet(new.folders.pieces, other.folders.pieces, _names_meet)
    return meets


def _names_meet(a: Name, b: Name) -> bool:
    if isinstance(a, str):
        return a == b if isinstance(b, str) else _glob_takes(b, a)
    if isinstance(b, str):
        return _glob_takes(a, b)
    if not (
        (a.start.startswith(b.start) or b.start.startswith(a.start))
        and (a.end.endswith(b.end) or b.end.endswith(a.end))
    ):
        return False
    return (
        (a.head <= len(b.start) or b.head <= len(a.start))
        and (a.tail <= len(b.end) or b.tail <= len(a.end))
        and len(a.pieces) > 1
        and len(b.pieces) > 1
    ) or _chains_meet(a.pieces, b.pieces, characters_meet)


def _glob_takes(glob: Glob, name: str) -> bool:
    if not (name.startswith(glob.start) and name.endswith(glob.end)):
        return False
    if not glob.is_text:
        return _chains_meet(glob.pieces, (name,), characters_meet)
    first, room = len(glob.start), len(name) - len(glob.end)
    for piece in glob.pieces[1:-1]:
        number = name.find(str(piece), first)
        if number < 0:
            return False
        first = number + len(piece)
    return first <= room


def _chains_meet(a: Sequence[Sequence[_Unit]], b: Sequence[Sequence[_Unit]], agree: _Agree[_Unit]) -> bool:
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
    if len(head) > room or (head and not all(map(agree, head, row))):
        return False
    if tail and not all(map(agree, tail, row[room:])):
        return False
    return len(chain) == 2 or _follow(chain[1:-1], row[len(head) : room], agree)


def _follow(pieces: Sequence[Sequence[_Unit]], row: Sequence[_Unit], agree: _Agree[_Unit]) -> bool:
    first = 0
    if len(row) <= _SHORT:
        for piece in pieces:
            while not all(map(agree, piece, row[first:])):
                first += 1
            first += len(piece)
        return first <= len(row)
    positions: dict[_Unit, int] = {}
    for position, unit in enumerate(row):
        positions[unit] = positions.get(unit, 0) | 1 << position
    wild = [unit for unit in positions if not isinstance(unit, str)]
    places: dict[_Unit, int] = {}
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


# Reading

_SCHEME = re.compile(r"[a-z][a-z0-9+-]+:")
_EXAMPLES = "pass a path, a pattern or a resource: src/app.py, src/**, port:8080"
_RELATIVE = "write it relative to the project root, with forward slashes: src/app.py or src/**"
_NOT_HOME = f"{_RELATIVE}; for a file with that name, write ./~name"
_NO_ESCAPES = f"{_RELATIVE}; for a literal wildcard character write [*]"
_NO_SLASH = (
    "write a resource as service:name, without a slash after the colon; for a path with that name, write "
    "./service:"
)
_REFUSED_TEXTS = (
    (re.compile(r"\A\s*\Z"), "is blank", _EXAMPLES),
    (re.compile(r"[\ud800-\udfff]"), "is not valid Unicode", "send it as UTF-8"),
    (
        re.compile(r"[\x00-\x1f\x7f-\x9f]"),
        "contains a control character",
        "remove the control character, for example a line break",
    ),
    (re.compile(r"\\"), "contains a backslash", _NO_ESCAPES),
    (re.compile(r"\A/"), "is an absolute path", _RELATIVE),
    (re.compile(r"\A~"), "begins in a home folder", _NOT_HOME),
    (re.compile(r"\A(?:\./+)*[A-Za-z]:"), "begins with a drive letter", _RELATIVE),
    (re.compile(r"(?:\A|/)\.\.(?:/|\Z)"), "contains `..`", f"{_RELATIVE}, without `..`"),
    (re.compile(rf"\A{_SCHEME.pattern}(?:/|\Z)"), "is neither a path nor a resource", _NO_SLASH),
)
# The text has the canonical spelling, as stored texts have. Only the wildcards can be invalid, so one pass is
# enough.
_TIDY_RUN = r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff\\:/*]++"
_TIDY_NAME = rf"(?!\.\.?(?:/|\Z))(?:\*?+(?:{_TIDY_RUN}\*?+)++|\*\*?+)"
_TIDY = re.compile(rf"(?![\s~]){_TIDY_NAME}(?:/{_TIDY_NAME})*+")


@lru_cache(maxsize=16_384)
def _parse(raw: str, case_sensitive: bool) -> Pattern:
    if _TIDY.fullmatch(raw) and "**/**" not in raw and len(raw) <= MAX_LENGTH:
        text = path = raw
    else:
        _check_length(raw, raw)
        for refused, problem, remedy in _REFUSED_TEXTS:
            if refused.search(raw):
                raise _invalid(raw, problem, remedy)
        if _SCHEME.match(raw):
            return Pattern(raw, raw, True, True, f":{raw}\0", _folders("", True), raw, False)
        names: list[str] = []
        parts = raw.split("/")
        for part in (*parts, "**") if parts[-1] in ("", ".") else parts:
            if part in ("", "."):
                continue
            if "**" in part:
                stars = "**" if not part.strip("*") else "*"
                part = "".join(stars if lexeme[0] == "*" else lexeme for lexeme in lexemes(part))
            if part != "**" or names[-1:] != ["**"]:
                names.append(part)
        text = path = "/".join(names)
        if raw.startswith("./") and (text.startswith("~") or _SCHEME.match(text)):
            text = f"./{text}"  # without this, the text would mean a home folder or a resource
        _check_length(raw, text)
    if "[" in path or path.count("*") + path.count("?") > MAX_WILDCARDS:
        _check_wildcards(raw, path, case_sensitive)
    above, _, written = path.rpartition("/")
    if written == "**":
        above, written = path, "*"  # `a/**` needs a name below a, because a itself is not inside a
    folders, last = _folders(above, case_sensitive), read_name(written, case_sensitive)
    is_literal = folders.is_literal and isinstance(last, str)
    start = folders.start
    if folders.is_literal:
        start += f"{last}/" if isinstance(last, str) else last.start
    prefix = start[1 : start.rindex("/")]
    return Pattern(text, prefix, is_literal, False, start, folders, last, not case_sensitive)


def _invalid(raw: str, problem: str, remedy: str) -> InvalidPattern:
    value = raw if len(raw) <= 200 else f"{raw[:200]}..."
    # a lone surrogate is not valid JSON
    value = value.encode("utf-8", "backslashreplace").decode("utf-8")
    return InvalidPattern(f"the pattern {value!r} {problem}", value=value, remedy=remedy)


def _check_length(raw: str, text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise _invalid(
            raw,
            f"is longer than {MAX_LENGTH} characters",
            "reserve a folder that contains it, such as src/**",
        )


def _check_wildcards(raw: str, path: str, case_sensitive: bool) -> None:
    wild = [part for part in lexemes(path) if part[0] in "*?["]
    if len(wild) > MAX_WILDCARDS:
        raise _invalid(raw, f"has more than {MAX_WILDCARDS} wildcards", "use fewer: one ** covers any depth")
    for part in wild:
        if part == "[":
            raise _invalid(
                raw, "has a [ without a matching ] in the same path segment", "write [[] for a literal ["
            )
        if "[:" in part:
            raise _invalid(
                raw, "uses a named character class", "list the characters instead, such as [a-z] or [0-9]"
            )
        if part[0] == "[" and runs_backwards(part):
            raise _invalid(
                raw, "has a character range in reverse order", "write the lower character first: [a-z]"
            )
    if "[." in path and any(read_name(name, case_sensitive) in (".", "..") for name in path.split("/")):
        raise _invalid(raw, "spells `.` or `..` with sets", "remove these sets")


@lru_cache(maxsize=16_384)
def _folders(above: str, case_sensitive: bool) -> _Folders:
    pieces: list[list[Name]] = [[]]
    for written in above.split("/") if above else ():
        if written == "**":
            pieces.append([])
        else:
            pieces[-1].append(read_name(written, case_sensitive))
    start, is_literal = "/", len(pieces) == 1
    for name in pieces[0]:
        if isinstance(name, Glob):
            start, is_literal = start + name.start, False
            break
        start += f"{name}/"
    return _Folders(tuple(map(tuple, pieces)), start, is_literal)
