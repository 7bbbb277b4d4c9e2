"""What a channel can do, declared once by its adapter and asked by nobody twice.

What is not declared is not done. The core never learns a platform by name: it reads these values. An adapter
whose chats differ (private ones that know drafts, a server with a higher limit) derives its own with
`dataclasses.replace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from postroom.contracts.errors import InvalidArgument

SMALLEST_LIMIT = 32
"""No text is cut into parts shorter than this, whatever the unit: a fence must be closed within them."""
NO_LIMIT = 1_000_000
"""Stands for the limit of channels that have none of their own."""


class LengthUnit(StrEnum):
    """What a platform counts when it says how long a text is."""

    CHARACTERS = "characters"
    """Unicode code points."""
    UTF16 = "utf16"
    """UTF-16 code units: what lies beyond U+FFFF, as most emoji do, counts twice."""
    UTF8 = "utf8"
    """Bytes in UTF-8: one to four a code point."""

    def measure(self, text: str) -> int:
        """Return how long the text is in this unit; half a surrogate pair counts alone."""
        match self:
            case LengthUnit.CHARACTERS:
                return len(text)
            case LengthUnit.UTF16:
                return len(text.encode("utf-16-le", "surrogatepass")) // 2
            case LengthUnit.UTF8:
                return len(text.encode("utf-8", "surrogatepass"))

    def fitting(self, text: str, start: int, room: int) -> int:
        """Return the greatest end for which `text[start:end]` is at most `room` units long.

        It looks at `room` code points at most, however long the text is.
        """
        most = min(len(text), start + room)
        if self is LengthUnit.CHARACTERS or self.measure(text[start:most]) <= room:
            return most
        least = start + room // 4
        while least < most:
            middle = (least + most + 1) // 2
            if self.measure(text[start:middle]) <= room:
                least = middle
            else:
                most = middle - 1
        return least


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many calls within any stretch of so many milliseconds."""

    most: int
    per_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """What a platform's documentation allows one bot; what is not said is learned from its refusals."""

    bot: Rate | None = None
    """All calls together."""
    chat: Rate | None = None
    """What is said in one chat."""
    group: Rate | None = None
    """What is said in one group, beside what any chat allows."""
    methods: Mapping[str, Rate] = field(default_factory=dict)
    """Calls of one method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCapabilities:
    """What a channel can do; what is not said it cannot.

    Raises:
        InvalidArgument: the limit is under `SMALLEST_LIMIT`, or the interval is negative.
    """

    limit: int
    """The longest text of one message, in `unit`."""
    unit: LengthUnit = LengthUnit.CHARACTERS
    edits: bool = False
    """A message that was sent can be given another text."""
    streams: bool = False
    """A draft can be shown while it is written; it is no message and goes away when the message comes."""
    threads: bool = False
    """A chat has threads, and an answer can be sent into one."""
    reasoning: bool = False
    """The reasoning of the model can be shown apart from its answer."""
    typing: bool = False
    """It can be shown that an answer is being written."""
    reactions: bool = False
    """A message of somebody else can be given a mark, which can be taken away again."""
    media: frozenset[str] = frozenset()
    """The kinds of files, by their `MessageType`."""
    min_edit_interval_ms: int = 1_000
    """Two looks of one draft lie at least this far apart."""
    holds_requests: bool = False
    """Who writes holds a request open until the answer comes: a failure is told rather than waited out."""
    rates: RateLimits = field(default_factory=RateLimits)
    """How often it may be called."""

    def __post_init__(self) -> None:
        refuse_small_limit(self.limit)
        if self.min_edit_interval_ms < 0:
            raise InvalidArgument(
                f"the interval between edits is {self.min_edit_interval_ms} ms, but must be 0 or more",
                value=self.min_edit_interval_ms,
            )


def refuse_small_limit(limit: int) -> None:
    """Refuse a limit within which not every text can be cut.

    Raises:
        InvalidArgument: it is under `SMALLEST_LIMIT`.
    """
    if limit < SMALLEST_LIMIT:
        raise InvalidArgument(
            f"the limit of {limit} for a message is too small; use {SMALLEST_LIMIT} or more",
            value=limit,
        )
