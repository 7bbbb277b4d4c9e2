"""Many messages at once to one session, over the real Telegram adapter: one agent, each answered or refused, in order.

`POSTROOM_TURN_MS` is how long a turn takes (10 by default), `POSTROOM_AT_ONCE` how many messages come (120 by default);
the full test is 1000 and 200.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from channels.fake_telegram import TOKEN, FakeTelegram, Hurried, message, shown_text, update
from dispatch_room import Deaf, done
from postroom.concurrency import SystemTimer
from postroom.contracts.chat import InboundStatus
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.messages import Boundary
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway.config import BusyConfig, BusyPolicy, GatewayConfig
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.telegram import TelegramOptions
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore

TURN_MS = int(os.environ.get("POSTROOM_TURN_MS", "10"))
MANY = int(os.environ.get("POSTROOM_AT_ONCE", "120"))
"""More than may wait."""
SENDERS = 3
GROUP = {"id": -100200, "type": "supergroup", "title": "Team"}
pytestmark = [pytest.mark.long, pytest.mark.timeout(120 + TURN_MS * 250 // 1000)]


class Agent(Deaf):
    """A fake agent that takes its time, reads what it is steered with at half of it, and can be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work = self.peak = 0
        self.read: list[str] = []
        self.files = 0
        self.turns: list[set[str]] = []
        self.stops: dict[str, asyncio.Event] = {}

    def wake_pending_boundary(self, id: str) -> bool:
        return id in self.stops

    def cancel(self, id: str) -> bool:
        stop = self.stops.get(id)
        if stop is not None:
            stop.set()
        return stop is not None

    async def execute(self, activation: Any, sink: Any) -> Any:
        self.at_work += 1
        self.peak = max(self.peak, self.at_work)
        stop = self.stops[activation.run_id] = asyncio.Event()
        try:
            texts = self._took(activation.messages)
            await self._worked(stop)
            texts += self._took(await activation.control.pending.freeze(Boundary.NEXT_STEP))
            await self._worked(stop)
            return done(activation, "re: " + " | ".join(texts))
        finally:
            del self.stops[activation.run_id]
            self.at_work -= 1

    async def _worked(self, stop: asyncio.Event) -> None:
        await asyncio.wait([asyncio.ensure_future(stop.wait())], timeout=TURN_MS / 2_000)

    def _took(self, messages: Any) -> list[str]:
        words = [one.content[0].text.split("] ", 1)[-1] for one in messages]
        self.read += words
        self.files += sum(len(one.content) - 1 for one in messages)
        if messages:
            self.turns.append({one.content[0].data["sender"] for one in messages})
        return words


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    held = SqliteStore.open(tmp_path / "postroom.db", purpose="test")
    yield held
    held.close()


def said(number: int) -> dict[str, Any]:
    """A message of one of the senders; each fifth is a picture."""
    sender = {"id": 1 + number % SENDERS, "is_bot": False, "first_name": f"P{number % SENDERS}"}
    told = message(number, f"@PostroomBot w{number}")
    told["entities"] = [{"type": "mention", "offset": 0, "length": 12}]
    if number % 5 == 0:
        text = told.pop("text")
        told |= {"caption": text, "caption_entities": told.pop("entities")}
        told["photo"] = [{"file_id": f"f{number}", "file_unique_id": f"u{number}", "width": 9, "height": 9}]
    return update(number, message={**told, "from": sender, "chat": GROUP})


@pytest.mark.parametrize("count", [20, MANY])
@pytest.mark.parametrize("mode", list(BusyPolicy))
async def test_all_at_once(store: SqliteStore, mode: BusyPolicy, count: int) -> None:
    fake, agent, timer = FakeTelegram(), Agent(), SystemTimer()
    async with fake.serving():
        telegram = TelegramOptions(token=TOKEN, allow={"*": PersonRole.MEMBER}, base_url=fake.url)
        config = GatewayConfig(
            platforms={Platform.TELEGRAM: telegram},
            busy=BusyConfig(mode=mode),
            group_sessions_per_user=False,
            drain=timedelta(0),
        )
        relay, adapter = Relay(store.store, {}), Hurried(telegram)
        sessions = Sessions(store.chat, config, store.runs.clock)
        presenter = StreamingPresenter(config.streaming, sessions, [adapter], store.runs.clock, timer)
        mailbox = Mailbox(ChatExecutor(agent, presenter), store.runs, effects=ChatEffects())
        made = Gateway(
            config,
            stores=store.chat,
            outbox=store.runs.outbox,
            threads=store.runs.threads,
            run_queue=mailbox,
            presenter=presenter,
            relay=relay,
            clock=store.runs.clock,
            timer=timer,
        )
        async with mailbox, made as gateway, asyncio.TaskGroup() as group:
            relaying = group.create_task(relay.serve(asyncio.Event()))
            fake.feed(*(said(number) for number in range(1, count + 1)))
            counts = await _all_closed(store, fake, count, mode)
            assert (await gateway.counts()).adds_up
            relaying.cancel()
    _refuse_wrong(fake, agent, mode, count, counts)


async def _all_closed(
    store: SqliteStore, fake: FakeTelegram, count: int, mode: BusyPolicy
) -> dict[InboundStatus, int]:
    never = asyncio.Event()
    async with asyncio.timeout(100 + count * TURN_MS / 800):
        while True:
            counts = await store.chat.intake_log.counts()
            ended = sum(counts.get(one, 0) for one in InboundStatus if not one.is_open)
            if ended == count and _are_told(_refusals(fake), counts.get(InboundStatus.REJECTED, 0), mode):
                return counts  # that a message is not taken is said after it is closed
            with contextlib.suppress(TimeoutError):  # to look without a pause would take the gateway's time
                async with asyncio.timeout(0.02):
                    await never.wait()


def _are_told(told: int, refused: int, mode: BusyPolicy) -> bool:
    """Return whether the refusals were told: each of them, or in `reject` mode a chat twice a minute."""
    if mode is BusyPolicy.REJECT:
        return bool(told) == bool(refused) and told <= refused
    return told == refused


def _refusals(fake: FakeTelegram) -> int:
    return sum(shown_text(one["text"]).startswith("Rejected") for one in fake.messages.values())


def _refuse_wrong(
    fake: FakeTelegram, agent: Agent, mode: BusyPolicy, count: int, counts: dict[InboundStatus, int]
) -> None:
    wanted = [f"w{number}" for number in range(1, count + 1)]
    assert agent.peak == 1
    assert agent.read == [word for word in wanted if word in agent.read], "they were read in another order"
    assert len(agent.read) == len(set(agent.read))
    assert all(len(senders) == 1 for senders in agent.turns), "messages of several senders were read as one"
    assert agent.files == sum(int(word[1:]) % 5 == 0 for word in agent.read)
    texts = [shown_text(one["text"]) for one in fake.messages.values()]
    answered = [word for text in texts if text.startswith("re: ") for word in text[4:].split(" | ")]
    answered = [word.removesuffix("\n\nStopped.") for word in answered]
    refused = counts.get(InboundStatus.REJECTED, 0)
    stopped = sum(text == "Stopped." for text in texts)
    assert len(answered) == len(set(answered))
    assert _are_told(_refusals(fake), refused, mode)
    assert len(answered) + refused + stopped == count, counts
    if mode in (BusyPolicy.QUEUE, BusyPolicy.COLLECT, BusyPolicy.STEER):
        assert stopped == 0
        assert answered == agent.read
        assert refused == 0 or count == MANY
    if mode is BusyPolicy.REJECT:
        assert agent.read[0] == "w1"
