"""A channel shared by servers: one of them receives and sends; another takes over when that one ends or is suspended."""

import asyncio
from datetime import timedelta

import pytest

from fake_channel import FakeChannel
from gateway_room import Agent, Room, all_answered, both_engines, settled
from postroom.contracts.errors import Overloaded, StoreUnavailable
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.base import AdapterState
from postroom.leases import LENGTH, Leases


class Server:
    """A gateway with its own leases, one of several over one store."""

    def __init__(self, room: Room, name: str) -> None:
        self.room, self.agent = room, Agent()
        self.leases = Leases(room.runs.store, name, {})
        self.gateway: Gateway
        self.channel: FakeChannel

    async def open(self) -> "Server":
        self.gateway, self.channel = await self.room.open(self.agent, leases=self.leases)
        return self

    @property
    def state(self) -> AdapterState:
        return self.channel.liveness.state

    async def becomes(self, state: AdapterState) -> None:
        await settled(self.room.hurry(self.gateway), lambda: self.state is state)


async def two(room: Room) -> tuple[Server, Server]:
    return await Server(room, "one").open(), await Server(room, "two").open()


@both_engines
async def test_one_server_has_the_channel_and_the_other_says_so(room) -> None:
    one, other = await two(room)
    assert (one.state, other.state) == (AdapterState.CONNECTED, AdapterState.ELSEWHERE)
    with pytest.raises(StoreUnavailable, match="another server"):
        await other.channel.handle_message(other.channel.message("hello"))
    await one.channel.say("hello")
    await all_answered(room, other.gateway, 1)
    assert one.channel.texts() == ["re: hello"]
    assert not other.channel.said


@both_engines
async def test_the_other_takes_it_over_when_the_first_stands_still_and_the_first_then_lets_go(room) -> None:
    one, other = await two(room)
    room.clock.advance(LENGTH)
    await other.leases.renew()
    await other.becomes(AdapterState.CONNECTED)
    await one.becomes(AdapterState.ELSEWHERE)
    with pytest.raises(StoreUnavailable):
        await one.channel.handle_message(one.channel.message("to the one that stood still"))
    await other.channel.say("hello")
    await all_answered(room, other.gateway, 1)
    assert other.channel.texts() == ["re: hello"]
    assert not one.channel.said


async def test_a_server_that_cannot_renew_lets_go_before_another_may_take_it(room) -> None:
    one, other = await two(room)
    room.clock.advance(LENGTH * 5 / 6)
    await one.becomes(AdapterState.ELSEWHERE)
    await other.leases.renew()
    assert other.state is AdapterState.ELSEWHERE


async def test_a_server_that_ends_hands_the_channel_over_at_once(room) -> None:
    one, other = await two(room)
    before = room.clock.now()
    await one.gateway.stop()
    await other.leases.renew()
    await other.becomes(AdapterState.CONNECTED)
    assert room.clock.now() - before < LENGTH / timedelta(milliseconds=1)


async def test_what_was_to_be_said_by_the_one_that_stands_still_is_said_by_the_other(room) -> None:
    one, other = await two(room)
    one.agent.free.clear()
    await one.channel.say("hello")
    await settled(one.agent.began(1))
    room.clock.advance(LENGTH)
    await other.leases.renew()
    await other.becomes(AdapterState.CONNECTED)
    await one.becomes(AdapterState.ELSEWHERE)
    one.agent.free.set()
    async with asyncio.timeout(60):
        await all_answered(room, other.gateway, 1)
    assert [*one.channel.texts(), *other.channel.texts()] == ["re: hello"]
    assert not one.channel.said


async def test_a_retry_waits_for_the_server_with_the_channel_although_another_polls_first(room) -> None:
    one, other = await two(room)

    async def fail(activation, sink):
        one.agent.act = None
        raise Overloaded("the provider is down")

    one.agent.act = fail
    await one.channel.say("hello")
    await settled(one.agent.began(1))
    (_, here), (_, there) = room.opened
    await here.settled()
    room.clock.advance(LENGTH / 2)
    await there.poll()
    await there.settled()
    assert other.agent.read == []
    await here.poll()
    await all_answered(room, one.gateway, 1)
    assert one.channel.texts() == ["re: hello"]
