"""Gateways are killed at any moment under load; every message is answered once, in order, and none is lost.

`POSTROOM_GATEWAY_ROUNDS` is how often a process is killed (4 by default); the full test is 50.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from channels.fake_telegram import FakeTelegram, message, shown_text, update
from postroom.contracts.chat import InboundStatus
from postroom.gateway import wording
from postroom.stores.sqlite import SqliteStore

ROUNDS = int(os.environ.get("POSTROOM_GATEWAY_ROUNDS", "4"))
CHATS = 8
PROGRAM = Path(__file__).with_name("gateway_process.py")
pytestmark = [pytest.mark.long, pytest.mark.timeout(120 + ROUNDS * 12)]


class Gateway:
    """A gateway runs in its own process, is killed, and starts again."""

    def __init__(self, place: Path, folder: Path, api: str, *, turn_ms: int) -> None:
        self._words = [str(place), str(folder / "journal"), api, str(turn_ms)]
        self._errors, self._journal = folder / "gateway.err", folder / "journal"
        self._running = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._errors.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, str(PROGRAM), *self._words], stdout=errors, stderr=errors
            )

    def end(self) -> None:
        self._running.kill()
        self._running.wait()

    def kill(self) -> None:
        self.end()
        self._running = self._started()

    def stop(self) -> int:
        self._running.terminate()
        return self._running.wait()

    def said(self) -> str:
        return self._errors.read_text()[-2_000:]


def inbound(number: int) -> dict[str, Any]:
    """A message of one of the chats; its text is unique."""
    chat = number % CHATS + 1
    who = {"id": chat, "is_bot": False, "first_name": f"P{chat}"}
    place = {"id": chat, "type": "private", "first_name": f"P{chat}"}
    told = message(number, f"w{number}")
    return update(number, message={**told, "from": who, "chat": place})


def answers(fake: FakeTelegram) -> dict[int, list[str]]:
    """Return what stands in each chat at the end, in the order in which it was sent."""
    found: dict[int, list[str]] = defaultdict(list)
    for _, fields in sorted(fake.messages.items()):
        text = fields["text"]
        if fields.get("parse_mode") == "MarkdownV2":
            text = shown_text(text)
        found[int(fields["chat_id"])].append(text)
    return found


def refuse_wrong_answers(fake: FakeTelegram, count: int) -> None:
    """Each message has its answer once, or again with a mark; the first ones stand in order."""
    for chat, texts in answers(fake).items():
        firsts = []
        for text in texts:
            plain = text.removeprefix(f"{wording.POSSIBLE_DUPLICATE}\n")
            if plain.startswith("Queued"):
                continue
            if plain in firsts:
                assert plain != text, f"{text!r} stands twice in chat {chat} and is not marked"
            else:
                firsts.append(plain)
        wanted = [f"re: w{number}" for number in range(1, count + 1) if number % CHATS + 1 == chat]
        assert sorted(firsts) == sorted(wanted), (chat, set(wanted) ^ set(firsts))
        assert firsts == wanted, f"the answers of chat {chat} stand in another order"
    assert len(answers(fake)) == min(CHATS, count)


async def all_answered(fake: FakeTelegram, count: int) -> None:
    async with asyncio.timeout(90):
        while True:
            texts = {
                text.removeprefix(f"{wording.POSSIBLE_DUPLICATE}\n")
                for chat in answers(fake).values()
                for text in chat
            }
            if len([text for text in texts if text.startswith("re: ")]) >= count:
                return
            await asyncio.wait([asyncio.ensure_future(fake._over.wait())], timeout=0.05)


async def test_killed_again_and_again_each_message_is_answered_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    fake = FakeTelegram()
    async with fake.serving():
        place = tmp_path / "postroom.db"
        gateway = await asyncio.to_thread(lambda: Gateway(place, tmp_path, fake.url, turn_ms=60))
        count = 0
        try:
            for _ in range(ROUNDS):
                for _ in range(chance.randint(5, 25)):
                    count += 1
                    fake.feed(inbound(count))
                    if chance.random() < 0.2:
                        fake.feed(inbound(count))  # the platform sends it twice
                await asyncio.wait(
                    [asyncio.ensure_future(fake._over.wait())], timeout=chance.uniform(0.6, 2.5)
                )
                await asyncio.to_thread(gateway.kill)
            count += 1
            fake.feed(inbound(count))  # so that the last of the processes has been at work as well
            await all_answered(fake, count)
            assert await asyncio.to_thread(gateway.stop) == 0, gateway.said()
        finally:
            await asyncio.to_thread(gateway.end)
        refuse_wrong_answers(fake, count)
        store = await asyncio.to_thread(SqliteStore.open, place, purpose="test")
        try:
            assert await store.chat.intake_log.counts() == {InboundStatus.DONE: count}
        finally:
            await asyncio.to_thread(store.close)
