"""When a bot may call its platform: bursts against limits that are counted strictly."""

import asyncio
from collections import deque
from collections.abc import Iterable
from datetime import timedelta

import pytest

from postroom.gateway.capabilities import Rate, RateLimits
from postroom.gateway.pacing import KEPT_MS, UNTOLD_MS, Pacing
from postroom.testing import ManualClock

LIMITS = RateLimits(bot=Rate(30, 1_000), chat=Rate(1, 1_000), group=Rate(20, 60_000))


def is_within(instants: Iterable[int], rate: Rate) -> bool:
    """Return whether calls at these instants keep a limit in every stretch of its length."""
    window: deque[int] = deque()
    for at in sorted(instants):
        window.append(at)
        while window[0] <= at - rate.per_ms:
            window.popleft()
        if len(window) > rate.most:
            return False
    return True


async def wait_for(pacing: Pacing, chat: str | None, key: str | None = None, **more: bool) -> int:
    """Call at once, if that is allowed; otherwise return the time to wait."""
    async with pacing.turn("send", chat, key=key, **more) as turn:
        return turn.wait_ms


async def test_a_place_that_nobody_comes_back_for_is_given_up(clock: ManualClock) -> None:
    pacing = Pacing(RateLimits(chat=Rate(1, 10_000)), clock, clock)
    assert await wait_for(pacing, "a") == 0
    assert await wait_for(pacing, "a", "gone") == 10_000
    assert await wait_for(pacing, "a") == 20_000  # without a key it keeps no place
    clock.advance(timedelta(milliseconds=10_001 + KEPT_MS))
    assert await wait_for(pacing, "a", "next") == 0


async def test_drafts_have_a_turn_only_where_nobody_waits_and_half_is_left(clock: ManualClock) -> None:
    pacing = Pacing(RateLimits(bot=Rate(4, 10_000)), clock, clock)
    assert await wait_for(pacing, None, gives_way=True) == 0
    assert await wait_for(pacing, None, gives_way=True) == 0
    assert await wait_for(pacing, None, gives_way=True) > 0
    assert [await wait_for(pacing, None, key) for key in "xyz"] == [0, 0, 10_000]
    assert await wait_for(pacing, None, gives_way=True) > 0


async def test_a_refusal_quietens_the_chat_for_so_long_and_two_of_them_the_bot(clock: ManualClock) -> None:
    pacing = Pacing(LIMITS, clock, clock)
    async with pacing.turn("send", "a") as turn:
        turn.refused(30_000)
    assert await wait_for(pacing, "a", "x") == 30_000
    assert await wait_for(pacing, "b") == 0
    async with pacing.turn("send", "c") as turn:
        turn.refused(None)
    assert await wait_for(pacing, "d", "y") == UNTOLD_MS
    clock.advance(timedelta(seconds=30))
    assert await wait_for(pacing, "a", "x") == 0
    assert await wait_for(pacing, "d", "y") == 0


async def test_a_refusal_of_typing_quietens_typing_and_one_in_a_chat_besides_the_bot_for_all_its_time(
    clock: ManualClock,
) -> None:
    pacing = Pacing(LIMITS, clock, clock)
    async with pacing.turn("typing", gives_way=True) as turn:
        turn.refused(3_000)
    async with pacing.turn("typing", gives_way=True) as turn:
        assert turn.wait_ms == 3_000
    assert await wait_for(pacing, "a") == 0
    async with pacing.turn("send", "b") as turn:
        turn.refused(9_000)
    assert await wait_for(pacing, "c", "of the bot") == 9_000


@pytest.mark.long
async def test_storms_keep_every_limit_and_everybody_has_a_turn(clock: ManualClock) -> None:
    """200 chats and 60 people in one group at the same instant; callers that get a `Retry-After` try again."""
    pacing, said = Pacing(LIMITS, clock, clock), []

    async def say(chat: str, key: str) -> None:
        while True:
            async with pacing.turn("send", chat, is_group=chat == "-1", key=key) as turn:
                if not turn.wait_ms:
                    said.append((clock.now(), chat, key))
                    await clock.sleep(40)
                    return
            await clock.sleep(turn.wait_ms)

    everybody = [("-1", f"g{number}") for number in range(60)]
    everybody += [(str(number), f"c{number}") for number in range(200)]
    began = clock.now()
    tasks = [asyncio.ensure_future(say(*one)) for one in everybody]
    async with asyncio.timeout(60):
        while not all(one.done() for one in tasks):
            await asyncio.sleep(0)
            if clock.sleeping:
                clock.advance(timedelta(milliseconds=20))
    assert sorted(key for _, _, key in said) == sorted(key for _, key in everybody)
    assert is_within((at for at, _, _ in said), Rate(30, 1_000))
    group = [at for at, chat, _ in said if chat == "-1"]
    assert is_within(group, Rate(20, 60_000))
    assert is_within(group, Rate(1, 1_000))
    assert max(at for at, chat, _ in said if chat != "-1") - began < 15_000
    assert max(group) - began < 190_000
