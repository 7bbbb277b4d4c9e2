"""What a channel can do, declared once by its adapter and asked by nobody twice.

What is not declared is not done. The core never learns a platform by name: it reads these values. An adapter
whose chats differ (private ones that know drafts, a server with a higher limit) derives its own with
`dataclasses.replace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from postroom.contracts.errors import InvalidArgument

SMALLEST_LIMIT = 32
"""No text is cut into parts shorter than this, whatever the unit: a part number needs up to 18 of them."""
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


class MediaKind(StrEnum):
    """What can be attached to a message."""

    PHOTO = "photo"
    VIDEO = "video"
    AUDIO = "audio"
    VOICE = "voice"
    DOCUMENT = "document"
    STICKER = "sticker"


ALL_MEDIA = frozenset(MediaKind)
FILES = frozenset({MediaKind.PHOTO, MediaKind.VIDEO, MediaKind.AUDIO, MediaKind.DOCUMENT})
"""What a platform takes that knows files, and neither voice bubbles nor stickers."""


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
    typing: bool = False
    """It can be shown that an answer is being written."""
    media: frozenset[MediaKind] = frozenset()
    markup: str = "plain"
    """The dialect that the channel shows formatted: plain, markdown, mrkdwn (Slack's own) or html."""
    min_edit_interval_ms: int = 1_000
    """Two looks of one draft lie at least this far apart."""

    def __post_init__(self) -> None:
        refuse_small_limit(self.limit)
        if self.min_edit_interval_ms < 0:
            raise InvalidArgument(
                f"the interval between edits is {self.min_edit_interval_ms} ms: give 0 or more",
                value=self.min_edit_interval_ms,
            )


def refuse_small_limit(limit: int) -> None:
    """Refuse a limit within which not every text can be cut.

    Raises:
        InvalidArgument: it is under `SMALLEST_LIMIT`.
    """
    if limit < SMALLEST_LIMIT:
        raise InvalidArgument(
            f"a message of at most {limit} is too short to be cut into: give {SMALLEST_LIMIT} or more",
            value=limit,
        )


_UTF16 = LengthUnit.UTF16
_UTF8 = LengthUnit.UTF8

CAPABILITIES: Mapping[str, ChannelCapabilities] = MappingProxyType(
    {
        # 4096 after formatting, in UTF-16. Only private chats know drafts: there the adapter adds `streams`.
        "telegram": ChannelCapabilities(
            limit=4_096, unit=_UTF16, edits=True, threads=True, typing=True, media=ALL_MEDIA, markup="html"
        ),
        # Code points, by the word of its makers (discord/discord-api-docs 1315).
        "discord": ChannelCapabilities(
            limit=2_000, edits=True, threads=True, typing=True, media=FILES, markup="markdown"
        ),
        # Cut by the platform at 40,000. Edits share a rate of about fifty a minute.
        "slack": ChannelCapabilities(
            limit=39_000, edits=True, threads=True, media=FILES, markup="mrkdwn", min_edit_interval_ms=1_200
        ),
        # The platform's own limit is 65,536 bytes for the whole event, and that holds the text plain and as
        # HTML: so 16,000 bytes, not characters. In an edit the adapter keeps the text for old clients short.
        "matrix": ChannelCapabilities(
            limit=16_000,
            unit=_UTF8,
            edits=True,
            threads=True,
            typing=True,
            media=FILES,
            markup="html",
            min_edit_interval_ms=1_500,
        ),
        "mattermost": ChannelCapabilities(
            limit=4_000, edits=True, threads=True, typing=True, media=FILES, markup="markdown"
        ),
        "email": ChannelCapabilities(limit=50_000, threads=True, media=FILES),
        # Our own page keeps what it is shown; the interval only bounds how often it is told.
        "web": ChannelCapabilities(
            limit=NO_LIMIT,
            edits=True,
            streams=True,
            typing=True,
            media=FILES,
            markup="markdown",
            min_edit_interval_ms=100,
        ),
        "api_server": ChannelCapabilities(
            limit=NO_LIMIT, streams=True, markup="markdown", min_edit_interval_ms=0
        ),
        "webhook": ChannelCapabilities(limit=NO_LIMIT, markup="markdown"),
        "local": ChannelCapabilities(limit=NO_LIMIT),
        # Known by their limits alone: an adapter says what else it can do.
        "whatsapp": ChannelCapabilities(limit=4_096, unit=_UTF16),
        "whatsapp_cloud": ChannelCapabilities(limit=4_096, unit=_UTF16),
        "signal": ChannelCapabilities(limit=8_000),
        "sms": ChannelCapabilities(limit=1_600, unit=_UTF16),
        "dingtalk": ChannelCapabilities(limit=20_000),
        "homeassistant": ChannelCapabilities(limit=4_096),
        "feishu": ChannelCapabilities(limit=8_000),
        "wecom": ChannelCapabilities(limit=4_000),
        "weixin": ChannelCapabilities(limit=2_000),
        "bluebubbles": ChannelCapabilities(limit=4_000),
        "qqbot": ChannelCapabilities(limit=4_000),
        "teams": ChannelCapabilities(limit=28_000, unit=_UTF8),
        "google_chat": ChannelCapabilities(limit=4_000),
        "ntfy": ChannelCapabilities(limit=4_096, unit=_UTF8),
        "photon": ChannelCapabilities(limit=8_000),
        "simplex": ChannelCapabilities(limit=8_000),
        "yuanbao": ChannelCapabilities(limit=10_000),
    }
)
"""What is known of platforms, by the name that their adapters have."""
