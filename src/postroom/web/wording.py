"""Formats text for the pages: times, sizes, names, excerpts and highlighted search hits."""

import re
import unicodedata
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

from postroom.contracts.clock import iso
from postroom.contracts.mail import All, AnyOf, Not, Phrase, Query, Term
from postroom.contracts.quoting import without_escapes

UNKNOWN_TIME = "at an unknown time"

_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_JUST_NOW = 45 * _SECOND
_AS_DATE = 30 * _DAY
_YEAR_10000 = 253_402_300_800_000

TONES = 12
"""The number of colours for initials in the style sheet: `tone-0` to `tone-11`."""

_CAPITALS = re.compile(r"[A-Z0-9][^A-Z0-9]*")
# Matches control characters, lone surrogates, line separators and paragraph separators (Cc, Cs, Zl, Zp).
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_UNSEEN_IN_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_FENCES_AND_RULES = re.compile(r"^\s*(```|~~~).*$|^[\s|:=_*-]+$", re.MULTILINE)
_LINE_MARKS = re.compile(r"^(\s*(#{1,6}|>|[-+*]|\[[ xX]\])(?=\s))+", re.MULTILINE)
_LINKS = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_EMPHASIS = re.compile(r"(\*{1,3}|~~|\b_{1,3})(?=\S)(.+?)(?<=\S)\1")
# Matches marks that reverse the order of the text after them, and show `gpj.exe` as `exe.jpg`.
_REORDERING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C])


def moment(instant: int) -> str | None:
    """Format a time as ISO 8601; return None if the time is outside the range of the calendar."""
    return iso(instant) if 0 <= instant < _YEAR_10000 else None


@lru_cache(4096)
def absolute(instant: int) -> str:
    """Format a time in UTC with date, hours, minutes and seconds."""
    if moment(instant) is None:
        return UNKNOWN_TIME
    return f"{datetime.fromtimestamp(instant // _SECOND, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"


def relative(instant: int, now: int) -> str:
    """Return how long ago or how far ahead a time is, or the date if the time is over a month away."""
    if moment(instant) is None:
        return UNKNOWN_TIME
    distance = abs(instant - now)
    if distance < _JUST_NOW:
        return "just now" if instant <= now else "in a moment"
    if distance >= _AS_DATE:
        day = datetime.fromtimestamp(instant // _SECOND, tz=UTC)
        return f"{day.day} {day:%b %Y}"
    for unit, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if distance >= unit:
            span = f"{distance // unit} {name}" + ("" if distance < 2 * unit else "s")
            break
    else:
        span = f"{distance // _SECOND} seconds"
    return f"{span} ago" if instant <= now else f"in {span}"


def clock_time(instant: int, now: int, zone: tzinfo) -> str:
    """Format a time as the time of day in a time zone.

    The day is included if it is not today and at most a month away.
    """
    moment = datetime.fromtimestamp(instant // _SECOND, tz=zone)
    today = datetime.fromtimestamp(now // _SECOND, tz=zone)
    day = (
        ""
        if moment.date() == today.date() or abs(instant - now) >= _AS_DATE
        else f"{moment.day} {moment:%b} "
    )
    return f"{day}{moment:%H:%M}{' UTC' if zone is UTC else ''}"


def size_text(size: int) -> str:
    """Format a number of bytes in a suitable unit."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024 or unit == "GiB":
            break
    return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"


@lru_cache(4096)
def initials(name: str) -> str:
    """Return the initials for an avatar: GL for `GreenLake`, DB for `deploy-bot`, Ad for `Ada`."""
    parts = [part for part in re.split(r"[^0-9A-Za-z]+", name) if part]
    if not parts:
        return name[:1].upper() or "?"
    if len(parts) == 1:
        capitals = _CAPITALS.findall(parts[0])
        parts = capitals if len(capitals) > 1 else parts
    if len(parts) == 1:
        return parts[0][:1].upper() + parts[0][1:2]
    return "".join(part[0] for part in parts[:2]).upper()


def tone(name: str) -> int:
    """Return the index of the colour for a name.

    A name has the same colour on every page and machine.
    """
    return (zlib.crc32(name.casefold().encode("utf-8", "replace")) >> 16) % TONES


def one_line(text: str) -> str:
    """Return a text without control characters, line breaks and text-direction marks."""
    if text.isascii() and text.isprintable():  # fast path for most names: a page may have a thousand
        return " ".join(text.split())
    return " ".join(_UNSEEN.sub(" ", text.translate(_REORDERING)).split())


def lines(text: str) -> str:
    """Return a text without escape sequences and text-direction marks. Line breaks are kept."""
    return _UNSEEN_IN_LINES.sub(" ", without_escapes(text).translate(_REORDERING))


def clip(text: str, length: int) -> str:
    """Cut a text to at most `length` characters, and add an ellipsis if the text was cut."""
    return text if len(text) <= length else text[:length].rstrip() + "…"


def lasting(began: int, ended: int) -> str:
    """Return a duration as text with at most two units."""
    seconds = max(ended - began, 0) // _SECOND
    if seconds < 1:
        return "less than a second"
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def gist(body: str, *, length: int = 180) -> str:
    """Return the beginning of a Markdown text as one line of plain text."""
    prose = _LINE_MARKS.sub("", _FENCES_AND_RULES.sub("", body[: 4 * length]))
    # Text between backticks is code, in which a star is only a star.
    parts = prose.replace("|", " ").split("`")
    parts[::2] = [_EMPHASIS.sub(r"\2", _LINKS.sub(r"\1", part)) for part in parts[::2]]
    line = one_line("".join(parts))
    return line if len(line) <= length else line[:length].rstrip() + "…"


def folder_name(path: str) -> str:
    """Return the last segment of a path, which pages show as the name of a project."""
    match = re.search(r"[^\\/]+(?=[\\/]*\Z)", path)
    return one_line(path if match is None else match[0])


def extension(name: str) -> str:
    """Return a label for the type of a file, with up to four characters of its name."""
    _, dot, last = name.rpartition(".")
    return last.upper() if dot and last.isascii() and last.isalnum() and len(last) <= 4 else "FILE"


_WORD = re.compile(r"[^\W_]+")


@dataclass(slots=True)
class Wanted:
    """The words and prefixes that a search query looks for, in normalised form."""

    words: set[str] = field(default_factory=set)
    beginnings: tuple[str, ...] = ()

    def has(self, word: str) -> bool:
        """Return whether the query looks for a word."""
        folded = _fold(word)
        return folded in self.words or folded.startswith(self.beginnings)


def wanted(query: Query) -> Wanted:
    """Return the words that a query looks for, without excluded words."""
    found = Wanted()
    match query:
        case Term(text=text, prefix=prefix):
            words = [_fold(word) for word in _WORD.findall(text)]
            if prefix and words:
                found.beginnings += (words.pop(),)
            found.words.update(words)
        case Phrase(words=words):
            found.words.update(_fold(word) for text in words for word in _WORD.findall(text))
        case Not(left=left):
            return wanted(left)
        case All(parts=parts) | AnyOf(parts=parts):
            for part in map(wanted, parts):
                found.words |= part.words
                found.beginnings += part.beginnings
    return found


def pieces(excerpt: str, looked_for: Wanted) -> list[tuple[str, bool]]:
    """Split an excerpt into pieces, and mark the pieces that are search hits."""
    cut: list[tuple[str, bool]] = []
    end = 0
    for match in _WORD.finditer(excerpt):
        if looked_for.has(match[0]):
            cut += [(excerpt[end : match.start()], False), (match[0], True)]
            end = match.end()
    cut.append((excerpt[end:], False))
    return [(text, hit) for text, hit in cut if text]


def _fold(word: str) -> str:
    characters = unicodedata.normalize("NFKD", word)
    return "".join(character for character in characters if not unicodedata.combining(character)).casefold()
