"""The declared abilities of channels, and the missing ones."""

import pytest

from postroom.contracts.errors import InvalidArgument
from postroom.gateway.capabilities import NO_LIMIT, SMALLEST_LIMIT, ChannelCapabilities, LengthUnit
from postroom.gateway.platforms.api_server import ApiServerAdapter
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.platforms.discord import DiscordAdapter
from postroom.gateway.platforms.email import EmailAdapter
from postroom.gateway.platforms.matrix import MatrixAdapter
from postroom.gateway.platforms.slack import SlackAdapter
from postroom.gateway.platforms.telegram import TelegramAdapter
from postroom.gateway.platforms.web import WebAdapter
from postroom.gateway.platforms.webhook import WebhookAdapter
from table_rows import each_row

ADAPTERS = [
    (TelegramAdapter, 4_096, LengthUnit.UTF16, (True, False)),
    (DiscordAdapter, 2_000, LengthUnit.CHARACTERS, (True, False)),
    (SlackAdapter, 39_000, LengthUnit.CHARACTERS, (True, False)),
    (MatrixAdapter, 16_000, LengthUnit.UTF8, (True, False)),
    (EmailAdapter, 50_000, LengthUnit.CHARACTERS, (False, False)),
    (WebAdapter, NO_LIMIT, LengthUnit.CHARACTERS, (True, True)),
    (ApiServerAdapter, NO_LIMIT, LengthUnit.CHARACTERS, (False, True)),
    (WebhookAdapter, NO_LIMIT, LengthUnit.CHARACTERS, (False, False)),
]


@each_row("adapter, limit, unit, shows", ADAPTERS)
def test_a_channel_has_its_limit_and_says_whether_it_edits_or_streams(
    adapter: type[BasePlatformAdapter], limit: int, unit: LengthUnit, shows: tuple[bool, bool]
) -> None:
    can = adapter.capabilities
    assert (can.limit, can.unit, (can.edits, can.streams)) == (limit, unit, shows)


def test_what_is_not_declared_is_not_there() -> None:
    bare = ChannelCapabilities(limit=1_000)
    assert [bare.edits, bare.streams, bare.threads, bare.typing] == [False] * 4
    assert bare.media == frozenset()
    assert bare.unit is LengthUnit.CHARACTERS


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="too small"):
        ChannelCapabilities(limit=SMALLEST_LIMIT - 1)
    with pytest.raises(InvalidArgument, match="0 or more"):
        ChannelCapabilities(limit=SMALLEST_LIMIT, min_edit_interval_ms=-1)
