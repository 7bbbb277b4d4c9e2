"""Gateways are killed at any moment under load; every message is answered once, in order, and none is lost.

`POSTROOM_GATEWAY_ROUNDS` is how often a process is killed (4 by default); the full test is 50.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addresses import free_address
from channels.fake_telegram import SILENCE, FakeTelegram, message, shown_text, update
from postgres_server import running_postgres
from postroom.contracts.chat import InboundStatus
from postroom.gateway import wording
from postroom.stores.sqlite import SqliteStore
from store_kinds import refuse_missing

ROUNDS = int(os.environ.get("POSTROOM_GATEWAY_ROUNDS", "4"))
CHATS = 8
PROGRAM = Path(__file__).with_name("gateway_process.py")
pytestmark = [pytest.mark.long, pytest.mark.timeout(120 + ROUNDS * 12)]


class Processes:
    """Gateways over one place that are killed and started again."""

    def __init__(
        self, place: str, folder: Path, api: str, *, turn_ms: int, ports: tuple[int | None, ...]
    ) -> None:
        self._place, self._folder, self._api = place, folder, api
        self._turn_ms, self._ports = turn_ms, ports
        self.journal = folder / "journal"
        self.running: list[subprocess.Popen[bytes]] = []
        for number in range(len(ports)):
            self.running.append(self._started(number))

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        port = self._ports[number]
        words = [self._place, str(self.journal), self._api, str(self._turn_ms)]
        words += [] if port is None else [str(port)]
        with (self._folder / f"gateway-{number}.err").open("ab") as errors:
            return subprocess.Popen([sys.executable, str(PROGRAM), *words], stdout=errors, stderr=errors)

    def kill(self, number: int) -> None:
        self.running[number].kill()
        self.running[number].wait()
        self.running[number] = self._started(number)

    def stop(self, number: int) -> int:
        self.running[number].terminate()
        return self.running[number].wait()

    def end(self) -> None:
        for one in self.running:
            one.kill()
            one.wait()

    def entries(self) -> list[list[str]]:
        return [line.split(" ") for line in self.journal.read_text().splitlines()]

    def said(self) -> str:
        return "".join(path.read_text()[-2_000:] for path in self._folder.glob("gateway-*.err"))


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


def refuse_wrong_answers(fake: FakeTelegram, count: int) -> Counter[str]:
    """Each message has its answer once, or again with a mark; the first ones stand in order."""
    extra: Counter[str] = Counter()
    for chat, texts in answers(fake).items():
        firsts = []
        for text in texts:
            plain = text.removeprefix(f"{wording.POSSIBLE_DUPLICATE}\n")
            if plain.startswith("Queued"):
                continue
            if plain in firsts:
                assert plain != text, f"{text!r} stands twice in chat {chat} and is not marked"
                extra["duplicates"] += 1
            else:
                firsts.append(plain)
                extra["marked"] += plain != text
        wanted = [f"re: w{number}" for number in range(1, count + 1) if number % CHATS + 1 == chat]
        assert sorted(firsts) == sorted(wanted), (chat, set(wanted) ^ set(firsts))
        assert firsts == wanted, f"the answers of chat {chat} stand in another order"
    assert len(answers(fake)) == min(CHATS, count)
    return extra


def refuse_two_at_once(entries: list[list[str]], dead: bool) -> None:
    """At no instant do two processes that live execute one session; each message is executed to its end."""
    at_work: dict[str, tuple[str, str]] = {}
    ended: Counter[str] = Counter()
    for word, thread, run, text, pid in entries:
        if word == "start":
            before = at_work.get(thread)
            assert before is None or dead, f"{before} is at work on {thread} when {(run, pid)} begins"
            at_work[thread] = (run, pid)
        elif at_work.get(thread) == (run, pid):
            del at_work[thread]
            ended[text] += 1
    if not dead:
        assert set(ended.values()) == {1}


async def all_answered(fake: FakeTelegram, count: int, processes: Processes) -> None:
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
        processes = await asyncio.to_thread(
            lambda: Processes(str(place), tmp_path, fake.url, turn_ms=60, ports=(None,))
        )
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
                await asyncio.to_thread(processes.kill, 0)
            count += 1
            fake.feed(inbound(count))  # so that the last of the processes has been at work as well
            await all_answered(fake, count, processes)
            assert await asyncio.to_thread(processes.stop, 0) == 0, processes.said()
        finally:
            await asyncio.to_thread(processes.end)
        extra = refuse_wrong_answers(fake, count)
        print(f"\n{ROUNDS} kills, {count} messages, {dict(extra)}")
        refuse_two_at_once(processes.entries(), dead=True)
        store = await asyncio.to_thread(SqliteStore.open, place, purpose="test")
        try:
            assert await store.chat.intake_log.counts() == {InboundStatus.DONE: count}
        finally:
            await asyncio.to_thread(store.close)


async def test_killed_between_two_files_the_text_and_the_first_file_are_not_sent_again(
    tmp_path: Path,
) -> None:
    fake = FakeTelegram()
    async with fake.serving():
        fake.faults["sendDocument"].extend([None, SILENCE])  # the second is on its way when the process dies
        processes = await asyncio.to_thread(
            lambda: Processes(str(tmp_path / "p.db"), tmp_path, fake.url, turn_ms=2, ports=(None,))
        )
        try:
            fake.feed(update(1, message=message(1, "files: one.txt two.txt three.txt")))
            await _asked_for(fake, "sendDocument", 2)
            await asyncio.to_thread(processes.kill, 0)
            await _asked_for(fake, "sendDocument", 4)
            assert await asyncio.to_thread(processes.stop, 0) == 0, processes.said()
        finally:
            await asyncio.to_thread(processes.end)
    names = [call.files["document"][0] for call in fake.calls if call.method == "sendDocument"]
    assert names == ["one.txt", "two.txt", "two.txt", "three.txt"]
    assert [
        shown_text(one.get("caption", "")) == wording.POSSIBLE_DUPLICATE for one in fake.sent("sendDocument")
    ] == [
        False,
        False,
        True,  # nobody knows whether it had arrived
        False,
    ]
    assert [shown_text(one["text"]) for one in fake.sent("sendMessage")] == [
        "re: files: one.txt two.txt three.txt"
    ]


async def _asked_for(fake: FakeTelegram, method: str, times: int) -> None:
    """Wait until a method was called so often."""
    async with asyncio.timeout(60):
        while len(fake.sent(method)) < times:
            await asyncio.wait([asyncio.ensure_future(fake._over.wait())], timeout=0.05)


@pytest.fixture
def dsn() -> Iterator[str]:
    """A server of its own, started and ended outside of the event loop."""
    refuse_missing("postgres")
    with running_postgres() as found:
        yield found


async def test_two_processes_on_one_server_run_a_session_once_at_a_time(dsn: str, tmp_path: Path) -> None:
    fake = FakeTelegram()
    async with fake.serving():
        ports = tuple(free_address()[1] for _ in range(2))
        processes = await asyncio.to_thread(
            lambda: Processes(dsn, tmp_path, fake.url, turn_ms=30, ports=ports)
        )
        count = 60
        headers = {"X-Telegram-Bot-Api-Secret-Token": "webhook-secret"}
        try:
            async with httpx2.AsyncClient() as client:
                for number in range(1, count + 1):
                    await _delivered(client, ports[number // CHATS % 2], inbound(number), headers)
            await all_answered(fake, count, processes)
            for number in range(2):
                assert await asyncio.to_thread(processes.stop, number) == 0, processes.said()
        finally:
            await asyncio.to_thread(processes.end)
        refuse_wrong_answers(fake, count)
        entries = processes.entries()
        refuse_two_at_once(entries, dead=False)
        assert len({pid for *_, pid in entries}) == 2


async def _delivered(client: Any, port: int, told: dict[str, Any], headers: dict[str, str]) -> None:
    """Send an update until it is taken, as the platform does."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await client.post(f"http://127.0.0.1:{port}/telegram", json=told, headers=headers)
            except httpx2.TransportError:
                await asyncio.sleep(0)  # it is not up yet
                continue
            if answer.status_code == 200:
                return
