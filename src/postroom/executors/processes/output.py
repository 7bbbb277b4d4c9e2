"""The output of a program in bounded memory: its tail, its lines, and the part that is streamed."""

import codecs
from collections import deque
from collections.abc import Iterator
from typing import Final

from postroom.contracts.agent_events import EventSink, TextDelta
from postroom.contracts.clock import Clock
from postroom.contracts.quoting import without_escapes

CUT_NOTE: Final = "[the beginning was cut off: {count} bytes]\n"
STREAM_NOTE: Final = "\n[further output is not streamed]\n"
LEAST_LINE_BYTES: Final = 4 << 20
"""A line of JSON may always be this long: programs send the output of their tools in one."""


class Tail:
    """The last bytes of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks: deque[bytes] = deque()
        self._kept = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        """Add output; bytes beyond the bound are dropped from the beginning."""
        self.total += len(chunk)
        self._chunks.append(chunk[-self._most :])
        self._kept += len(self._chunks[-1])
        while self._kept - len(self._chunks[0]) >= self._most:
            self._kept -= len(self._chunks.popleft())
        if len(self._chunks) > 2 * self._most // 4_096 + 64:  # many small ones cost more than their bytes
            self._chunks = deque([b"".join(self._chunks)])

    @property
    def is_cut(self) -> bool:
        """Whether bytes were dropped."""
        return self.total > self._most

    def bytes(self) -> bytes:
        """Return the kept bytes."""
        return b"".join(self._chunks)[-self._most :]

    def text(self) -> str:
        """Return it as text, with a note where its beginning is missing; broken UTF-8 is replaced."""
        kept = self.plain()
        if not self.is_cut:
            return kept
        return CUT_NOTE.format(count=self.total - self._most) + kept

    def plain(self) -> str:
        """Return it as text without a note, and without terminal escape sequences."""
        kept = self.bytes()
        rest = 0
        while self.is_cut and rest < min(3, len(kept)) and kept[rest] & 0xC0 == 0x80:
            rest += 1  # of a character that began before the cut
        return without_escapes(kept[rest:].decode("utf-8", "replace"))


class Lines:
    """The lines of a stream; longer lines than the bound are skipped."""

    def __init__(self, most: int) -> None:
        self._most = max(most, LEAST_LINE_BYTES)
        self._begun = bytearray()
        self._too_long = False

    def add(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete with this."""
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._begin(piece)
            yield from self.end()
        self._begin(rest)

    def end(self) -> Iterator[bytes]:
        """Yield the unfinished line, if there is one."""
        line, is_kept = bytes(self._begun), not self._too_long
        self._begun, self._too_long = bytearray(), False
        if line.strip() and is_kept:
            yield line

    def _begin(self, piece: bytes) -> None:
        if self._too_long or len(self._begun) + len(piece) > self._most:
            self._begun, self._too_long = bytearray(), True
        else:
            self._begun += piece


class Stream:
    """Passes text on within a rate and a total, and notes when it drops some."""

    def __init__(self, sink: EventSink, clock: Clock, *, per_second: int, in_all: int) -> None:
        self._sink = sink
        self._clock = clock
        self._per_second = per_second
        self._left_in_all = in_all
        self._since = clock.now()
        self._left = per_second
        self._is_noted = False

    @property
    def is_over(self) -> bool:
        """Whether the total is used up."""
        return self._left_in_all <= 0

    async def pass_on(self, text: str) -> None:
        """Pass on as much of the text as the limits allow."""
        if self.is_over or not text:
            return
        now = self._clock.now()
        if not self._since <= now < self._since + 1_000:
            self._since, self._left = now, self._per_second
            self._is_noted = False
        most = min(self._left, self._left_in_all)
        shown = text[:most]
        self._left -= len(shown)
        self._left_in_all -= len(shown)
        if shown:
            await self._sink.emit(TextDelta(delta=shown))
        if len(shown) < len(text) and not self._is_noted:
            self._is_noted = True
            await self._sink.emit(TextDelta(delta=STREAM_NOTE))


class Decoder:
    """Decodes UTF-8 piece by piece; broken bytes are replaced."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def text(self, chunk: bytes, *, final: bool = False) -> str:
        """Return the characters that are complete with this."""
        return self._decoder.decode(chunk, final)
