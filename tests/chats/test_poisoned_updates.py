"""An update that meets a defect of postroom becomes a dead letter, and the channel continues, shown as degraded."""

import asyncio
from datetime import timedelta

import pytest

from gateway_room import Agent, settled
from postroom.app.undelivered import UndeliveredService
from postroom.contracts.errors import InvalidArgument, ServerUnavailable
from postroom.gateway.platforms.base import MAX_TRIES

TOKENS = (
    f"123456789:{'Ab-_9' * 7}",  # Telegram
    "xapp-1-A0123-456-abcdef",  # Slack
    f"MTE{'a' * 21}.Gabcde.{'b' * 27}",  # Discord
    f"syt_Ym90_{'c' * 20}_1abcde",  # Matrix
)


async def meet_a_defect() -> None:
    raise TypeError("a defect in our own code")


async def poisoned(room):
    gateway, channel = await room.open(Agent())
    room.clock.advance(timedelta(minutes=5))
    update = {"update_id": 7, "message": {"text": " ".join(("poison", *TOKENS))}, "token": "a-secret"}
    for _ in range(MAX_TRIES - 1):
        with pytest.raises(ServerUnavailable):
            await channel.take_in(update, meet_a_defect)
        assert gateway.liveness()["telegram"]["state"] == "reconnecting"
    await channel.take_in(update, meet_a_defect)
    service = UndeliveredService(room.runs, [channel])
    listed = await until_listed(service)
    return gateway, channel, service, listed


async def until_listed(service):
    async with asyncio.timeout(60):
        while not (found := (await service.dead())["undelivered"]):
            await asyncio.sleep(0)
    return found


async def test_a_poisoned_update_is_listed_whole_without_its_secrets_and_others_are_answered(room) -> None:
    gateway, channel, _, [letter] = await poisoned(room)
    degraded_at = room.clock.now()
    assert (letter["kind"], letter["error"]) == ("update", "an update caused a defect: TypeError")
    assert f'"text": "poison{" (hidden token)" * len(TOKENS)}"' in letter["text"]
    assert "a-secret" not in letter["text"]
    await channel.say("hello")
    await settled(lambda: channel.texts() == ["re: hello"])
    told = gateway.liveness()["telegram"]
    assert (told["state"], told["error_code"]) == ("degraded", "updates_set_aside")
    assert told["since"] == degraded_at


async def test_a_poisoned_update_can_be_discarded_and_is_not_tried_again(room) -> None:
    _, _, service, [letter] = await poisoned(room)
    with pytest.raises(InvalidArgument, match="raw update"):
        await service.revive(letter["outbox_id"])
    assert (await service.discard(letter["outbox_id"]))["discarded"]
    assert (await service.dead())["undelivered"] == []


async def test_an_unreadable_update_is_one_dead_letter_however_often_it_comes(room) -> None:
    gateway, channel = await room.open(Agent())
    told = b'{"token": "a-secret", "text": "half a mess'

    async def read():
        raise InvalidArgument("no JSON")

    for _ in range(2):
        await channel.take_in(told, read)
    [letter] = await until_listed(UndeliveredService(room.runs, [channel]))
    assert letter["error"] == "an invalid update: no JSON"
    assert (channel.liveness.dead_updates, channel.liveness.refused) == (0, 2)
    assert "half a mess" in letter["text"]
    assert "a-secret" not in letter["text"]
    assert gateway.liveness()["telegram"]["state"] == "connected"
