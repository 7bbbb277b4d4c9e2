"""What channels declare, and what they do not."""

from dataclasses import FrozenInstanceError, replace

import pytest

from postroom.contracts.errors import InvalidArgument
from postroom.gateway.capabilities import (
    CAPABILITIES,
    FILES,
    SMALLEST_LIMIT,
    ChannelCapabilities,
    LengthUnit,
    MediaKind,
)
from postroom.gateway.drafts import Presentation
from table_rows import each_row

LIMITS = [
    ("telegram", 4_096, LengthUnit.UTF16),
    ("discord", 2_000, LengthUnit.CHARACTERS),
    ("slack", 39_000, LengthUnit.CHARACTERS),
    ("matrix", 16_000, LengthUnit.UTF8),
    ("mattermost", 4_000, LengthUnit.CHARACTERS),
    ("email", 50_000, LengthUnit.CHARACTERS),
    ("sms", 1_600, LengthUnit.UTF16),
    ("signal", 8_000, LengthUnit.CHARACTERS),
    ("whatsapp", 4_096, LengthUnit.UTF16),
    ("teams", 28_000, LengthUnit.UTF8),
    ("ntfy", 4_096, LengthUnit.UTF8),
]


@each_row("platform, limit, unit", LIMITS)
def test_the_known_limits_stand_in_the_table(platform: str, limit: int, unit: LengthUnit) -> None:
    assert (CAPABILITIES[platform].limit, CAPABILITIES[platform].unit) == (limit, unit)


@each_row(
    "platform, presentation",
    [
        ("telegram", Presentation.EDIT),
        ("discord", Presentation.EDIT),
        ("slack", Presentation.EDIT),
        ("matrix", Presentation.EDIT),
        ("web", Presentation.STREAM),
        ("api_server", Presentation.STREAM),
        ("email", Presentation.FINAL_ONLY),
        ("webhook", Presentation.FINAL_ONLY),
        ("local", Presentation.FINAL_ONLY),
        ("sms", Presentation.FINAL_ONLY),
    ],
)
def test_how_an_answer_is_presented_follows_from_what_is_declared(
    platform: str, presentation: Presentation
) -> None:
    assert Presentation.of(CAPABILITIES[platform]) is presentation


def test_what_is_not_declared_is_not_there() -> None:
    bare = ChannelCapabilities(limit=1_000)
    assert [bare.edits, bare.streams, bare.threads, bare.typing] == [False] * 4
    assert bare.media == frozenset()
    assert (bare.markup, bare.unit) == ("plain", LengthUnit.CHARACTERS)


def test_an_adapter_derives_its_own_and_the_table_stays() -> None:
    private = replace(CAPABILITIES["telegram"], streams=True)
    assert Presentation.of(private) is Presentation.STREAM
    assert not CAPABILITIES["telegram"].streams
    with pytest.raises(FrozenInstanceError):
        private.limit = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        CAPABILITIES["telegram"] = private  # type: ignore[index]


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="too short"):
        ChannelCapabilities(limit=SMALLEST_LIMIT - 1)
    with pytest.raises(InvalidArgument, match="0 or more"):
        ChannelCapabilities(limit=SMALLEST_LIMIT, min_edit_interval_ms=-1)


def test_files_are_neither_voice_bubbles_nor_stickers() -> None:
    assert frozenset(MediaKind) - FILES == {MediaKind.VOICE, MediaKind.STICKER}
