"""The capabilities of a channel, declared once by its adapter.

A capability that is not declared is not used. The gateway decides by these values, and never by the name of a
platform. An adapter whose chats differ (only private chats show drafts, or one server has a higher limit)
derives separate capabilities with `dataclasses.replace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from postroom.contracts.errors import InvalidArgument

SMALLEST_LIMIT = 32
"""The minimum limit for the parts of a text, in any unit.

A smaller part could have no room for the line that closes a fence.
"""
NO_LIMIT = 1_000_000
"""The message limit for channels whose platform does not set one."""


class LengthUnit(StrEnum):
    """The unit in which a platform measures the length of a text."""

    CHARACTERS = "characters"
    """Unicode code points."""
    UTF16 = "utf16"
    """UTF-16 code units. Characters beyond U+FFFF, such as most emoji, count twice."""
    UTF8 = "utf8"
    """Bytes in UTF-8. A code point counts one to four times."""

    def measure(self, text: str) -> int:
        """Return the length of the text in this unit."""
        match self:
            case LengthUnit.CHARACTERS:
                return len(text)
            case LengthUnit.UTF16:
                return len(text.encode("utf-16-le", "surrogatepass")) // 2
            case LengthUnit.UTF8:
                return len(text.encode("utf-8", "surrogatepass"))

    def fitting(self, text: str, start: int, room: int) -> int:
        """Return the greatest `end` such that `text[start:end]` is at most `room` units long."""
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
    """A rate limit: at most `most` calls within any period of `per_ms` milliseconds."""

    most: int
    per_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """The rate limits that a platform documents for one bot."""

    bot: Rate | None = None
    """The limit for all calls together."""
    chat: Rate | None = None
    """The limit for messages in one chat."""
    group: Rate | None = None
    """The limit for messages in one group, which applies in addition to `chat`."""
    methods: Mapping[str, Rate] = field(default_factory=dict)
    """The limits for calls of single methods, keyed by the method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCapabilities:
    """The capabilities of a channel.

    A capability that the adapter does not declare counts as missing.

    Raises:
        InvalidArgument: The limit is under `SMALLEST_LIMIT`, or the interval is negative.
    """

    limit: int
    """The maximum length of one message, measured in `unit`."""
    unit: LengthUnit = LengthUnit.CHARACTERS
    edits: bool = False
    """Whether the text of a sent message can be replaced."""
    streams: bool = False
    """Whether the channel can show a preview of an answer that is being written.

    The preview disappears when the message arrives.
    """
    threads: bool = False
    """Whether chats have threads into which answers can be sent."""
    reasoning: bool = False
    """Whether the model's reasoning can be shown separately from its answer."""
    typing: bool = False
    """Whether the channel can show a typing indicator."""
    reactions: bool = False
    """Whether the bot can add a reaction to a person's message and remove it again."""
    dedupes: bool = False
    """Whether a message that is sent twice with the same `dedupe_key` is shown once, also after a restart.

    If this is False, a repeated message is marked as a possible duplicate.
    """
    media: frozenset[str] = frozenset()
    """The kinds of files that the channel can send, as `MessageType` values."""
    min_edit_interval_ms: int = 1_000
    """Minimum time between two versions of a draft, in milliseconds."""
    holds_requests: bool = False
    """Whether senders keep a request open until they get the answer.

    If they do, failures are reported at once, and not only after retries that take minutes.
    """
    rates: RateLimits = field(default_factory=RateLimits)
    """The platform's rate limits."""

    def __post_init__(self) -> None:
        refuse_small_limit(self.limit)
        if self.min_edit_interval_ms < 0:
            raise InvalidArgument(
                f"the interval between edits is {self.min_edit_interval_ms} ms, but must be 0 or more",
                value=self.min_edit_interval_ms,
            )


def refuse_small_limit(limit: int) -> None:
    """Check that a length limit is large enough to split any text.

    Raises:
        InvalidArgument: The limit is under `SMALLEST_LIMIT`.
    """
    if limit < SMALLEST_LIMIT:
        raise InvalidArgument(
            f"the limit of {limit} for the length of a message is too small; use {SMALLEST_LIMIT} or more",
            value=limit,
        )
