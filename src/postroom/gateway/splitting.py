"""Splits a text into parts that a platform accepts, each of which is readable on its own.

    text     in code, fenced:   ```py          part 1   in code, fenced:   part 2   ```py
                                a = 1                   ```py                       b = 2
                                b = 2                   a = 1                       ```
                                ```                     ```

No part exceeds the limit. A cut never divides a surrogate pair, or a line that opens or closes a fence. A cut
divides a grapheme or inline code only if no other cut is possible. The same is true of a cut after which a
part begins with text that only looks like a fence. A cut is made after a blank line if possible, otherwise
after a newline, otherwise after a space. The last such position is chosen if the part is then at least half
full.

White space at a cut is removed, except for the indentation of the next line. Within a code fence, white space
stays. An info string that would fill half of a part is not repeated. A fence whose markers would fill a part
is treated as text.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from postroom.gateway.capabilities import LengthUnit, refuse_small_limit

_FENCE_LINE = re.compile(r"^( {0,3})(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_FENCE_HEAD = re.compile(r" {0,3}(?:```|~~~)")
_FENCE_MARKS = ("```", "~~~")
_WHITE = re.compile(r"[^\S\u00a0\u2007\u202f]+")
# A code span cannot extend beyond its block, which ends at a blank line, item, quote, heading or table row.
_TICKS = re.compile(r"`+|\n(?=[^\S\n]*(?:\n|[-*+]\s|>|\||#{1,6}\s|\d{1,9}[.)]\s))")
_JOINERS = frozenset("\u200c\u200d\uff9e\uff9f")
_MIN_ROOM = 8
# The kinds of cuts, from the worst to the best.
_NOTHING, _CODE_SPACE, _SPACE, _CODE_NEWLINE, _NEWLINE, _CODE_BLANK, _BLANK = range(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a text: `text[start:end]`, between the lines `opening` and `closing`."""

    start: int
    end: int
    opening: str = ""
    """The line that reopens the fence in which the part begins, with its newline."""
    closing: str = ""
    """The line that closes a fence which is open at the end of the part, after a newline if needed."""

    def of(self, text: str) -> str:
        """Return the characters of the part, including the opening and closing lines."""
        return f"{self.opening}{text[self.start : self.end]}{self.closing}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fence:
    """A fenced code block. The code is `text[code:close]`, and the closing line ends at `end`.

    For an unclosed fence, `close` and `end` are beyond the end of the text.
    """

    start: int
    code: int
    close: int
    end: int
    opening: str
    closing: str


@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut between two parts of a text. One part ends at `end`, and the next part begins at `after`."""

    kind: int
    end: int
    after: int


def split(text: str, *, limit: int, unit: LengthUnit) -> tuple[str, ...]:
    """Split a text into parts of at most `limit` units, in linear time.

    The joined parts equal the text, except for added fence lines and white space at the cuts. A code fence
    that is open at the end of a part is closed there, and reopened in the next part. A text that fits is
    returned as one part. No part is blank, and a blank text has no parts.

    Raises:
        InvalidArgument: The limit is under `SMALLEST_LIMIT`.
    """
    return tuple(piece.of(text) for piece in cut(text, limit=limit, unit=unit))


def cut(text: str, *, limit: int, unit: LengthUnit) -> tuple[Piece, ...]:
    """Split a text like `split`, but return the positions of the parts in the text.

    Raises:
        InvalidArgument: The limit is under `SMALLEST_LIMIT`.
    """
    refuse_small_limit(limit)
    if unit.measure(text) <= limit and not any(mark in text for mark in _FENCE_MARKS):
        return (Piece(start=0, end=len(text)),) if text.strip() else ()
    return tuple(piece for piece in _Splitter(text, limit, unit).pieces() if piece.of(text).strip())


class _Splitter:
    """Splits one text into parts, from start to end."""

    def __init__(self, text: str, room: int, unit: LengthUnit) -> None:
        self._text = text
        self._room = room
        self._unit = unit
        self._fences = [fence for fence in map(self._reopening_fence, _fences(text)) if fence is not None]
        self._fence_starts = [fence.start for fence in self._fences]
        self._spans = [
            (start, end)
            for start, end in _spans(text, self._fences)
            if end - start <= room and unit.measure(text[start:end]) <= room
        ]
        self._span_starts = [start for start, _ in self._spans]

    def pieces(self) -> Iterator[Piece]:
        """Yield the parts of the text in order, including blank parts."""
        text = self._text
        start = 0 if self._is_last(0) else self._after_white(0)
        while start < len(text):
            fence = self._fence_at(start)
            opening = fence.opening + "\n" if fence else ""
            if self._is_last(start):
                cut = _Cut(_NOTHING, len(text), len(text))
            else:
                cut = self._next_cut(start, self._room - self._unit.measure(opening))
            end, closing = cut.end, self._closing(cut.end)
            if not closing and (start > 0 or cut.after < len(text)):
                end = start + len(text[start:end].rstrip())
            yield Piece(start=start, end=end, opening=opening, closing=closing)
            start = cut.after

    def _reopening_fence(self, fence: _Fence) -> _Fence | None:
        """Return the fence with the line that reopens it, or None if no room for code remains."""
        if fence.code - fence.start > self._room:
            return None
        first = self._unit.measure(self._text[fence.start : fence.code])
        marks = 1 + max(len(fence.closing), fence.end - fence.close)
        if first + marks > self._room - _MIN_ROOM:
            return None
        return fence if first + marks <= self._room // 2 else replace(fence, opening=fence.closing)

    def _is_last(self, start: int) -> bool:
        """Return whether the text from `start` to the end fits into one part."""
        text = self._text
        if len(text) - start > self._room:
            return False
        fence = self._fence_at(start)
        added = self._closing(len(text)) + (fence.opening + "\n" if fence else "")
        return self._unit.measure(text[start:]) + self._unit.measure(added) <= self._room

    def _closing(self, end: int) -> str:
        """Return the text that closes the fence that is open at `end`, or "" if none is open."""
        fence = self._fence_at(end)
        if fence is None:
            return ""
        return fence.closing if end > fence.start and self._text[end - 1] == "\n" else "\n" + fence.closing

    def _fence_at(self, place: int) -> _Fence | None:
        """Return the fenced code block that contains a position, or None."""
        index = bisect_left(self._fence_starts, place) - 1
        return self._fences[index] if index >= 0 and place < self._fences[index].end else None

    def _after_white(self, place: int) -> int:
        """Return the position after white space, but before the indentation of a line."""
        white = _WHITE.match(self._text, place)
        if white is None:
            return place
        line = self._text.rfind("\n", max(place - 1, 0), white.end()) + 1
        return white.end() if place > 0 == line else line

    def _next_cut(self, start: int, room: int) -> _Cut:
        """Return the cut at the end of a part that begins at `start`."""
        end = self._unit.fitting(self._text, start, room)
        fence = self._fence_at(end)
        if fence is not None:
            code_end = self._unit.fitting(self._text, start, room - 1 - len(fence.closing))
            end = code_end if code_end > fence.code else fence.start
        indented = _WHITE.match(self._text, start, end + 1)
        first = indented.end() if indented else start + 1
        half = max(first, start + (end - start) // 2)
        return (
            self._best_white(start, half, end, end)
            or self._best_white(start, first, half, end)
            or self._within_a_line(start, end)
        )

    def _best_white(self, start: int, low: int, high: int, end: int) -> _Cut | None:
        """Return the best cut at white space between `low` and `high`."""
        best: _Cut | None = None
        barred = len(self._text)
        for white in reversed(list(_WHITE.finditer(self._text, low, min(high + 2, len(self._text))))):
            cut = self._at_white(white.start(), end)
            if cut is None or not start < cut.end <= high or white.start() >= barred:
                continue
            if best is not None and cut.kind <= best.kind:
                continue
            if cut.kind in (_SPACE, _CODE_SPACE):
                line = self._line_start(start, cut.end)
                if _FENCE_HEAD.match(self._text, line):
                    barred = line
                    continue
            best = cut
            if best.kind == _BLANK:
                break
        return best

    def _at_white(self, first: int, end: int) -> _Cut | None:
        """Return the cut at the white space that begins at `first`, or None if no cut is allowed there."""
        text, fence = self._text, self._fence_at(first)
        if fence is None:
            after = self._after_white(first)
            lines = text.count("\n", first, after)
            if self._span_around(first) or not (lines or self._may_begin(after)):
                return None
            return _Cut((_SPACE, _NEWLINE, _BLANK)[min(lines, 2)], first, after)
        white = _WHITE.match(text, first, end + 1)
        last = white.end() if white else first
        lines = text.count("\n", first, min(last, end))
        place = text.rfind("\n", first, min(last, end)) + 1 if lines else last
        if not fence.code <= first < place < fence.close or not self._closes_in_time(fence, place, end):
            return None
        if not (lines or self._may_begin(place)):
            return None
        return _Cut((_CODE_SPACE, _CODE_NEWLINE, _CODE_BLANK)[min(lines, 2)], place, place)

    def _closes_in_time(self, fence: _Fence, place: int, end: int) -> bool:
        """Return whether a fence can be closed at `place`."""
        return fence.end > end or fence.end - place > len(fence.closing)

    def _span_around(self, place: int) -> tuple[int, int] | None:
        """Return the inline code span that a cut at `place` would divide."""
        index = bisect_left(self._span_starts, place) - 1
        return self._spans[index] if index >= 0 and place < self._spans[index][1] else None

    def _may_begin(self, place: int) -> bool:
        """Return whether a part may begin at `place`, in the middle of a line."""
        return _is_boundary(self._text, place - 1, place) and not self._begins_a_fence(place)

    def _begins_a_fence(self, place: int) -> bool:
        """Return whether a part that begins at `place` would look like a code fence."""
        return self._text[place - 1] != "\n" and _FENCE_HEAD.match(self._text, place) is not None

    def _line_start(self, start: int, place: int) -> int:
        """Return the start of the line that contains `place`, or `start` if the line begins earlier."""
        return max(start, self._text.rfind("\n", start, place) + 1)

    def _within_a_line(self, start: int, end: int) -> _Cut:
        """Return the last cut that divides neither a grapheme nor a code span, if such a cut exists."""
        text = self._text
        fence = self._fence_at(end)
        if fence is not None and end >= fence.close:
            end = fence.close - 1 if fence.close - 1 > fence.code else fence.start
        place = end
        while place > start:
            fence, span = self._fence_at(place), self._span_around(place)
            if fence is not None and not fence.code < place < fence.close:
                place = fence.close - 1 if place >= fence.close else fence.start
            elif span is not None:
                place = span[0]
            elif text[place - 1] != "\n" and _FENCE_HEAD.match(text, self._line_start(start, place)):
                place = self._line_start(start, place)  # the line looks like the start or end of a fence
            elif fence is not None and not self._closes_in_time(fence, place, end):
                place -= 1
            elif _is_boundary(text, start, place) and not self._begins_a_fence(place):
                break
            else:
                place -= 1
        if place <= start:
            place = end - (_is_pair(text, end) and end - 1 > start)
        return _Cut(_NOTHING, place, place if self._fence_at(place) else self._after_white(place))


def _fences(text: str) -> Iterator[_Fence]:
    """Yield the fenced code blocks of a text."""
    opened: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        if opened is None:
            opened = line if line[2][0] == "~" or "`" not in line[3] else None
        elif line[2].startswith(opened[2]) and not line[3].strip(" \t\r"):
            yield _fence(opened, line.start(), line.end(2))
            opened = None
    if opened is not None:
        yield _fence(opened, len(text) + 1, len(text) + 1)


def _fence(opened: re.Match[str], close: int, end: int) -> _Fence:
    return _Fence(
        start=opened.start(),
        code=opened.end() + 1,
        close=close,
        end=end,
        opening=opened[0].rstrip(),
        closing=opened[1] + opened[2],
    )


def _spans(text: str, fences: list[_Fence]) -> Iterator[tuple[int, int]]:
    """Yield the inline code spans outside of fences, including their backticks."""
    lows = [0, *(fence.end for fence in fences)]
    highs = [*(fence.start for fence in fences), len(text)]
    for low, high in zip(lows, highs, strict=True):
        block: list[tuple[int, int]] = []
        for mark in _TICKS.finditer(text, low, max(low, high)):
            if mark[0] == "\n":
                yield from _code_spans(text, block)
                block = []
            else:
                block.append(mark.span())
        yield from _code_spans(text, block)


def _code_spans(text: str, runs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the inline code spans of a block of text."""
    closers: dict[int, int] = {}
    ends: list[tuple[int, int | None]] = []
    for index in range(len(runs) - 1, -1, -1):
        first, last = runs[index]
        slashes = 0
        while first > slashes and text[first - slashes - 1] == "\\":
            slashes += 1
        opens = first + slashes % 2
        ends.append((opens, closers.get(last - opens)))
        closers[last - first] = index
    ends.reverse()
    index = 0
    while index < len(runs):
        opens, closer = ends[index]
        if closer is not None:
            yield opens, runs[closer][1]
        index = index + 1 if closer is None else closer + 1


def _is_boundary(text: str, start: int, place: int) -> bool:
    """Return whether a cut at `place` divides no grapheme."""
    if not start < place < len(text) or text[place - 1] == "\n":
        return True
    before, after = text[place - 1], text[place]
    if after.isascii():
        return before != "\u200d" and (before, after) != ("\r", "\n")
    if before == "\u200d" or after in _JOINERS or unicodedata.category(after) in ("Mn", "Me", "Mc"):
        return False
    if (
        "\U0001f3fb" <= after <= "\U0001f3ff"
        or "\U000e0020" <= after <= "\U000e007f"
        or _is_pair(text, place)
    ):
        return False
    if "\u1160" <= after <= "\u11ff":  # a vowel or a final consonant of a Korean syllable
        return not ("\u1100" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3")
    if unicodedata.combining(before) == 9:  # a virama ties two consonants together
        return not after.isalpha()
    flags = 0
    while place - flags > start and "\U0001f1e6" <= text[place - flags - 1] <= "\U0001f1ff":
        flags += 1
    return not ("\U0001f1e6" <= after <= "\U0001f1ff" and flags % 2)


def _is_pair(text: str, place: int) -> bool:
    """Return whether a cut at `place` divides a surrogate pair."""
    return "\ud800" <= text[place - 1] < "\udc00" <= text[place : place + 1] < "\ue000"
