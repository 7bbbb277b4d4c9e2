"""Twenty messages at once from two people, every other message with a file, on the wire of each channel, in every busy mode."""

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from channels.drivers import ANN, BEN, DiscordDriver, Driver, Extra, SlackDriver, TelegramDriver, WebDriver
from dispatch_room import done
from gateway_room import CONFIG, Agent
from postroom.contracts.chat import InboundStatus
from postroom.contracts.messages import Boundary, Message
from postroom.contracts.records import replace
from postroom.gateway.config import BusyConfig, BusyPolicy
from postroom.testing import ManualClock

pytestmark = pytest.mark.long

WORK_MS = 100
NUMBERS = range(1, 21)
PEOPLE = (ANN, BEN)


def as_read(number: int) -> str:
    """The agent's answer to a message with a file."""
    return f"w{number} w{number}.file" if number % 2 else f"w{number}"


async def say(driver: Driver, number: int) -> None:
    """Return the words of a number; they name its person and file."""
    file = (f"{number}.pdf", f"%PDF-1.7<w{number}.file>".encode()) if number % 2 else None
    await driver.say(
        f"w{number}", PEOPLE[number // 2 % 2], Extra(group="groups" not in driver.lacks, file=file)
    )


class Reader(Agent):
    """Reads files, takes its time, reads what it is steered with at half of it, and can be stopped."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.act = self._work
        self.took: list[str] = []
        self.turns: list[set[str]] = []
        self._clock = clock
        self._stops: dict[str, asyncio.Event] = {}

    def wake_pending_boundary(self, id: str) -> bool:
        return id in self._stops

    def cancel(self, id: str) -> bool:
        stop = self._stops.get(id)
        if stop is not None:
            stop.set()
        return stop is not None

    async def _work(self, activation: Any, sink: Any) -> Any:
        stop = self._stops[activation.run_id] = asyncio.Event()
        try:
            took = await self._took(activation, activation.messages)
            await self._worked(stop)
            steered = await activation.control.pending.freeze(Boundary.NEXT_STEP)
            took += await self._took(activation, steered)
            await self._worked(stop)
            return done(activation, "re: " + " | ".join(took))
        finally:
            del self._stops[activation.run_id]

    async def _worked(self, stop: asyncio.Event) -> None:
        ways = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._clock.sleep(WORK_MS))]
        _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in others:
            way.cancel()

    async def _took(self, activation: Any, messages: tuple[Message, ...]) -> list[str]:
        found = [await self._read(activation.control.files, message) for message in messages]
        self.took += found
        if messages:
            self.turns.append({message.content[0].data["sender"] for message in messages})
        return found

    async def _read(self, files: Any, message: Message) -> str:
        words = re.findall(r"\bw\d+", message.text())
        for file in await files.of(message):
            assert file.missing is None, file
            whole = b"".join([piece async for piece in files.content(file)])
            words.append(whole.decode().split("<")[1].removesuffix(">"))
        return " ".join(words)


@pytest.mark.parametrize("mode", list(BusyPolicy))
@pytest.mark.parametrize(
    "kind", [TelegramDriver, SlackDriver, DiscordDriver, WebDriver], ids=lambda kind: kind.platform.value
)
async def test_each_of_twenty_is_answered_or_refused_once_with_its_own_files(
    room: Any, tmp_path: Path, kind: type[Driver], mode: BusyPolicy
) -> None:
    async with AsyncExitStack() as stack:
        driver = kind(tmp_path, stack)
        await driver.begin()
        config = replace(
            CONFIG,
            platforms={kind.platform: driver.config()},
            busy=BusyConfig(mode=mode),
            group_sessions_per_user=False,
        )
        agent, adapter = Reader(room.clock), driver.adapter(room.clock)
        gateway, _ = await room.open(agent, config=config, channel=adapter)
        await driver.opened(adapter)
        for number in NUMBERS:
            await say(driver, number)
        counts = await _all_closed(room, gateway, driver, mode)
        assert (await gateway.counts()).adds_up
        _refuse_wrong(driver, agent, mode, counts)
        await room.close()


async def _all_closed(room: Any, gateway: Any, driver: Driver, mode: BusyPolicy) -> dict[InboundStatus, int]:
    """Wait until each message is closed, and each refusal is sent; `reject` mode tells a chat twice a minute."""
    async with asyncio.timeout(100):
        while True:
            counts = await room.statuses()
            ended = sum(counts.get(one, 0) for one in InboundStatus if not one.is_open)
            told, refused = len(_refusals(driver)), counts.get(InboundStatus.REJECTED, 0)
            is_told = bool(told) == bool(refused) and told <= refused
            if ended == len(NUMBERS) and (is_told if mode is BusyPolicy.REJECT else told == refused):
                return counts
            for _ in range(100):  # looking at the store takes the gateway's time
                room.hurry(gateway)()
                await asyncio.sleep(0)


def _refusals(driver: Driver) -> list[str]:
    return [one.text for one in driver.shown() if one.text.startswith("Rejected")]


def _refuse_wrong(driver: Driver, agent: Reader, mode: BusyPolicy, counts: dict[InboundStatus, int]) -> None:
    wanted = [as_read(one) for one in NUMBERS]
    assert set(agent.peak.values()) == {1}
    assert sorted(agent.took) == sorted(set(agent.took) & set(wanted)), "read twice, or with wrong files"
    for person in (0, 1):
        own = [as_read(one) for one in NUMBERS if one // 2 % 2 == person]
        assert [one for one in agent.took if one in own] == [one for one in own if one in agent.took]
    assert all(len(senders) == 1 for senders in agent.turns), "messages of several people were read as one"
    shown = [one.text for one in driver.shown()]
    answers = [text.removeprefix("re: ") for text in shown if text.startswith("re: ")]
    answered = [one for text in answers for one in text.removesuffix("\n\nStopped.").split(" | ")]
    stopped = sum(text == "Stopped." for text in shown)
    assert len(answered) == len(set(answered))
    assert set(answered) <= set(agent.took)
    assert len(answered) + stopped + counts.get(InboundStatus.REJECTED, 0) == len(NUMBERS), shown
    if mode in (BusyPolicy.QUEUE, BusyPolicy.COLLECT, BusyPolicy.STEER):
        assert sorted(answered) == sorted(wanted)
    if mode is BusyPolicy.REJECT:
        assert counts[InboundStatus.REJECTED]
        assert stopped == 0
