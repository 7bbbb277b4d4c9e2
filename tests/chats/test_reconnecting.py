"""Channels that go down come back by themselves, or by the operator's word, and say since when and why."""

import asyncio
import json
from datetime import timedelta
from typing import Any

from fake_channel import FakeChannel
from gateway_room import CONFIG, Agent, all_answered, settled
from postroom.contracts.errors import ConfigError, CredentialRefused, PostroomError, ServerUnavailable
from postroom.contracts.records import replace
from postroom.gateway import status
from postroom.gateway.platforms.base import AdapterState


class Fragile(FakeChannel):
    """A channel whose next connections fail as the test says."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.failures: list[PostroomError] = []
        self.tries = 0

    async def connect(self, *, is_reconnect: bool = False) -> None:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        await super().connect(is_reconnect=is_reconnect)


async def test_whatever_a_channel_failed_of_it_is_connected_again(room) -> None:
    channel = Fragile(clock=room.clock)
    gateway, _ = await room.open(Agent(), channel=channel)
    room.clock.advance(timedelta(seconds=7))
    channel.failures = [ServerUnavailable("no answer"), ConfigError("another program has its webhook")]
    channel._fail("internal", "it stopped", retryable=True)
    down_at = room.clock.now()
    await settled(room.hurry(gateway), lambda: channel.tries == 3)
    told = gateway.liveness()["telegram"]
    assert (told["state"], told["since"], told["error"]) == (
        "failed",
        down_at,
        "another program has its webhook",
    )
    await settled(room.hurry(gateway), lambda: channel.liveness.state is AdapterState.CONNECTED)
    assert channel.tries == 4
    told = gateway.liveness()["telegram"]
    assert told["error"] is None
    assert told["since"] > down_at


async def test_a_refused_credential_is_not_offered_again_but_by_hand(room) -> None:
    channel = Fragile(clock=room.clock)
    gateway, _ = await room.open(Agent(), channel=channel)
    channel.failures = [CredentialRefused("the token was taken back")]
    channel._fail("internal", "it stopped", retryable=True)
    await settled(room.hurry(gateway), lambda: channel.tries == 2)
    room.clock.advance(timedelta(minutes=5))
    await settled(room.hurry(gateway), lambda: room.clock.sleeping)
    assert channel.tries == 2
    assert gateway.liveness()["telegram"]["error_code"] == "credential_refused"
    await gateway.reconnect(channel)
    assert channel.liveness.state is AdapterState.CONNECTED


async def test_channels_that_come_back_at_one_moment_leave_a_whole_status_file(room, tmp_path) -> None:
    gateway, channel = await room.open(Agent(), config=replace(CONFIG, state_dir=tmp_path))
    await asyncio.gather(*(gateway.reconnect(channel) for _ in range(20)))
    told = json.loads((tmp_path / status.STATUS_FILE).read_text())
    assert told["platforms"]["telegram"]["state"] == "connected"


async def test_a_status_file_that_cannot_be_written_ends_nothing(room, tmp_path) -> None:
    gateway, channel = await room.open(Agent(), config=replace(CONFIG, state_dir=tmp_path))
    (tmp_path / status.STATUS_FILE).unlink()
    (tmp_path / status.STATUS_FILE).mkdir()
    await gateway.reconnect(channel)
    await channel.say("hello")
    await all_answered(room, gateway, 1)
