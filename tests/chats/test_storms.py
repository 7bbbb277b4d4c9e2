"""Twenty messages at once from four people, of every kind, on the wire of each channel, in every busy mode."""

import asyncio
import re
from typing import Any

import pytest

from channels.storm_places import PEOPLE, Place, Said, opened
from dispatch_room import done
from gateway_room import CONFIG, Agent
from postroom.contracts.chat import InboundStatus
from postroom.contracts.messages import Boundary, Message
from postroom.contracts.records import replace
from postroom.gateway.config import BusyConfig, BusyPolicy
from postroom.gateway.session import Platform
from postroom.testing import ManualClock

pytestmark = pytest.mark.long

COUNT = 20
WORK_MS = 100
HEADS = {
    "photo": b"\x89PNG\r\n\x1a\n",
    "album": b"\x89PNG\r\n\x1a\n",
    "voice": b"OggS",
    "document": b"%PDF-1.7",
}
KINDS = ("text", *HEADS)


def said(number: int) -> Said:
    """A message of each kind in turn, from each person in turn; its files name it."""
    kind = KINDS[number % len(KINDS)]
    files = {"text": 0, "album": 3}.get(kind, 1)
    return Said(
        number=number,
        person=number % len(PEOPLE),
        kind=kind,
        words=f"w{number}",
        files=tuple(HEADS[kind] + f"<w{number}.{position}>".encode() for position in range(files)),
    )


def as_read(one: Said) -> str:
    """The agent's answer to a message that arrived with all of its files."""
    return " ".join([one.words, *(f"w{one.number}.{position}" for position, _ in enumerate(one.files))])


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
            words.append(whole.decode("latin-1").split("<")[1].removesuffix(">"))
            assert (file.transcript is not None) is (file.media_type == "audio/ogg"), file
        return " ".join(words)


async def _transcribed(path: Any, file: Any) -> str:
    return "said aloud"


@pytest.mark.parametrize("mode", list(BusyPolicy))
@pytest.mark.parametrize("platform", [Platform.TELEGRAM, Platform.SLACK, Platform.DISCORD, Platform.WEB])
async def test_each_of_twenty_is_answered_or_refused_once_with_its_own_files(room, platform, mode) -> None:
    messages = [said(number) for number in range(1, COUNT + 1)]
    async with opened(platform, room.clock) as place:
        config = replace(
            CONFIG,
            platforms={platform: place.config},
            busy=BusyConfig(mode=mode),
            group_sessions_per_user=False,
        )
        agent = Reader(room.clock)
        gateway, _ = await room.open(agent, config=config, channel=place.adapter)
        room.files.transcribe = _transcribed
        rows = await place.say(messages)
        counts = await _all_closed(room, gateway, place, rows, mode)
        assert (await gateway.counts()).adds_up
        _refuse_wrong(place, agent, mode, messages, counts)
        await room.close()


async def _all_closed(
    room: Any, gateway: Any, place: Place, rows: int, mode: BusyPolicy
) -> dict[InboundStatus, int]:
    """Wait until each message is closed, and each refusal is sent; `reject` mode tells a chat twice a minute."""
    async with asyncio.timeout(100):
        while True:
            counts = await room.statuses()
            ended = sum(counts.get(one, 0) for one in InboundStatus if not one.is_open)
            told, refused = len(_refusals(place)), counts.get(InboundStatus.REJECTED, 0)
            is_told = bool(told) == bool(refused) and told <= refused
            if ended == rows and (is_told if mode is BusyPolicy.REJECT else told == refused):
                return counts
            for _ in range(100):  # looking at the store takes the gateway's time
                if sum(counts.values()) == rows:  # while they come none passes: an album stays one
                    room.hurry(gateway)()
                await asyncio.sleep(0)


def _refusals(place: Place) -> list[str]:
    return [text for text in place.shown() if text.startswith("Rejected")]


def _refuse_wrong(
    place: Place, agent: Reader, mode: BusyPolicy, messages: list[Said], counts: dict[InboundStatus, int]
) -> None:
    wanted = [as_read(one) for one in messages]
    assert set(agent.peak.values()) == {1}
    assert sorted(agent.took) == sorted(set(agent.took) & set(wanted)), "read twice, or with wrong files"
    for person, _ in enumerate(PEOPLE):
        own = [as_read(one) for one in messages if one.person == person]
        assert [one for one in agent.took if one in own] == [one for one in own if one in agent.took]
    assert all(len(senders) == 1 for senders in agent.turns), "messages of several people were read as one"
    shown = place.shown()
    answers = [text.removeprefix("re: ") for text in shown if text.startswith("re: ")]
    answered = [one for text in answers for one in text.removesuffix("\n\nStopped.").split(" | ")]
    stopped = sum(text == "Stopped." for text in shown)
    assert len(answered) == len(set(answered))
    assert set(answered) <= set(agent.took)
    assert len(answered) + stopped + counts.get(InboundStatus.REJECTED, 0) == len(messages), shown
    if mode in (BusyPolicy.QUEUE, BusyPolicy.COLLECT, BusyPolicy.STEER):
        assert sorted(answered) == sorted(wanted)
    if mode is BusyPolicy.REJECT:
        assert counts[InboundStatus.REJECTED]
        assert stopped == 0
