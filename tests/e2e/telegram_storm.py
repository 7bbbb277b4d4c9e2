"""200 chats and a group of 60 people at once, against a Telegram that counts its published limits strictly.

python tests/e2e/telegram_storm.py [waves] [times as fast]

In each wave every chat is asked something; in the first, each of the group's people too. The agent streams its
answers. When it begins, somebody else has just used the bot up: the first calls are refused.
"""

import asyncio
import sys
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from channels.fake_telegram import (
    GROUP,
    TOKEN,
    USERNAME,
    Call,
    FakeTelegram,
    Refusal,
    message,
    shown_text,
    update,
)
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import TextDelta
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway.config import GatewayConfig
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.telegram import TelegramAdapter, TelegramOptions
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore

CHATS, PEOPLE = 200, 60
MINUTE_MS = 60_000


class HurriedTime:
    """Clock and timer of a day that passes so many times as fast."""

    def __init__(self, speed: float) -> None:
        self._speed, self._began = speed, time.monotonic()

    def now(self) -> int:
        return 1_700_000_000_000 + int((time.monotonic() - self._began) * 1_000 * self._speed)

    async def sleep(self, milliseconds: int) -> None:
        await asyncio.sleep(max(milliseconds, 0) / 1_000 / self._speed)


@dataclass
class Limits:
    """Counts every call: 30 a second in all, one a second in a chat, 20 a minute in a group.

    Who calls during a refusal's time is refused for longer.
    """

    clock: HurriedTime
    calls: dict[tuple[str, str], deque[int]] = field(default_factory=lambda: defaultdict(deque))
    closed: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    said: list[int] = field(default_factory=list)
    penalties: int = 0
    began: int | None = None
    """When we first said something; just before, somebody else had used everything up."""

    def refusal(self, call: Call) -> Refusal | None:
        if call.method in ("getMe", "getUpdates", "getWebhookInfo"):
            return None
        now, chat = self.clock.now(), str(call.fields.get("chat_id", ""))
        says = call.method.startswith(("send", "edit")) and call.method != "sendChatAction"
        if says and self.began is None:
            self.began = now
            self.calls["bot", ""].extend([now] * 30)
            self.calls["group", str(GROUP["id"])].extend([now] * 20)
        scopes = [("bot", "", 30, 1_000)]
        scopes += [("chat", chat, 1, 1_000)] if says else []
        scopes += [("group", chat, 20, MINUTE_MS)] if says and chat.startswith("-") else []
        for kind, name, most, per_ms in scopes:
            until, asked = self.closed.get((kind, name), (0, 0))
            window = self.calls[kind, name]
            while window and window[0] <= now - per_ms:
                window.popleft()
            if now < until:
                self.penalties += 1
                return self._close(kind, name, now, asked * 2)
            if len(window) >= most:
                return self._close(kind, name, now, max(1, -(-(window[0] + per_ms - now) // 1_000)))
        self.said += [now] if says else []
        for kind, name, _, _ in scopes:
            self.calls[kind, name].append(now)
        return None

    def _close(self, kind: str, name: str, now: int, seconds: int) -> Refusal:
        self.refused.append(now)
        self.closed[kind, name] = (now + seconds * 1_000, seconds)
        words = f"Too Many Requests: retry after {seconds}"
        return Refusal(429, words, {"retry_after": seconds})


class StrictTelegram(FakeTelegram):
    """A fake that refuses what is over the limits."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits

    def refusal(self, call: Call) -> Refusal | None:
        return self.limits.refusal(call)


class Agent(RunDispatchExecutor):
    """Streams `answer <what it was asked>` over three seconds."""

    def __init__(self, clock: HurriedTime) -> None:
        self._clock = clock

    async def run(self, activation: RunActivation, sink: Any) -> AgentRunResult:
        asked = activation.messages[0].text()
        words = f"answer {asked} " + "and so on " * 12 + "end"
        for at in range(0, len(words), 30):
            await sink.emit(TextDelta(delta=words[at : at + 30]))
            await self._clock.sleep(600)
        return AgentRunResult(run_id=activation.run_id or "", response=words)


@dataclass
class Figures:
    """What came of it, in milliseconds since the beginning; refusals since the first call."""

    asked: int
    answers: Counter[str]
    refused: list[int]
    penalties: int
    calls: Counter[str]
    chats_ms: int
    group_ms: int
    dead: int
    each_second: list[int]


async def storm(folder: Path, *, waves: int, speed: float) -> Figures:
    """Let the storm pass, and say what came of it."""
    clock = HurriedTime(speed)
    fake = StrictTelegram(Limits(clock))
    store = await asyncio.to_thread(SqliteStore.open, folder / "storm.db", purpose="gateway", clock=clock)
    try:
        async with fake.serving():
            return await _served(fake, store, clock, waves)
    finally:
        await asyncio.to_thread(store.close)


async def _served(fake: StrictTelegram, store: SqliteStore, clock: HurriedTime, waves: int) -> Figures:
    telegram = TelegramOptions(token=TOKEN, allow={"*": PersonRole.OWNER}, base_url=fake.url, poll_seconds=1)
    config = GatewayConfig(platforms={Platform.TELEGRAM: telegram}, drain=timedelta(0))
    runs, chat, relay, stopping = store.runs, store.chat, Relay(store.runs.store, {}), asyncio.Event()
    adapter = TelegramAdapter(telegram, clock=clock, timer=clock)
    sessions = Sessions(chat, config, clock)
    presenter = StreamingPresenter(config.streaming, sessions, [adapter], clock, clock)
    agent = ChatExecutor(Agent(clock), presenter)
    mailbox = Mailbox(agent, runs, effects=ChatEffects(), timer=clock)
    gateway = Gateway(
        config,
        stores=chat,
        outbox=runs.outbox,
        threads=runs.threads,
        run_queue=mailbox,
        presenter=presenter,
        relay=relay,
        clock=clock,
        timer=clock,
    )
    async with mailbox, gateway, asyncio.TaskGroup() as group:
        group.create_task(relay.serve(stopping))
        hinting = group.create_task(_hinted(relay, clock))
        found = await _asked(fake, runs, clock, waves)
        hinting.cancel()
        stopping.set()
        relay.hint()
    return found


async def _hinted(relay: Relay, clock: HurriedTime) -> None:
    """Have the relay look as often as it does where time does not hurry."""
    while True:
        await clock.sleep(1_000)
        relay.hint()


async def _asked(fake: StrictTelegram, runs: Any, clock: HurriedTime, waves: int) -> Figures:
    began, ids, expected = clock.now(), iter(range(1, 1_000_000)), set()
    done: dict[bool, int] = {}
    for wave in range(waves):
        due = began + wave * MINUTE_MS
        await clock.sleep(due - clock.now())
        asked = [(_chat(number), f"c{wave}x{number}") for number in range(CHATS)]
        if wave == 0:
            asked += [(GROUP, f"g{wave}x{number}") for number in range(PEOPLE)]
        expected |= {name for _, name in asked}
        fake.feed(*(_update(next(ids), chat, name, number) for number, (chat, name) in enumerate(asked)))
    while True:
        answers = _answers(fake)
        now = clock.now() - began
        for is_group in (False, True):
            wanted = {name for name in expected if name.startswith("g") is is_group}
            if is_group not in done and wanted <= answers.keys():
                done[is_group] = now
        if len(done) == 2 or now > (waves + 40) * MINUTE_MS:
            break
        await clock.sleep(500)
    await clock.sleep(3_000)  # a repetition would come now
    dead = await runs.outbox.dead_letters(limit=100)
    limits = fake.limits
    return Figures(
        asked=len(expected),
        answers=_answers(fake),
        refused=[at - (limits.began or 0) for at in limits.refused],
        penalties=limits.penalties,
        calls=Counter(call.method for call in fake.calls),
        chats_ms=done.get(False, -1),
        group_ms=done.get(True, -1),
        dead=len(dead),
        each_second=_each_second([at - began for at in limits.said]),
    )


def _each_second(instants: list[int]) -> list[int]:
    found = Counter(at // 1_000 for at in instants)
    return [found[second] for second in range(max(found, default=0) + 1)]


def _chat(number: int) -> dict[str, Any]:
    return {"id": 1_000 + number, "type": "private", "first_name": f"P{number}"}


def _update(number: int, chat: dict[str, Any], name: str, person: int) -> dict[str, Any]:
    sender = {"id": 1_000 + person, "is_bot": False, "first_name": f"P{person}"}
    if chat is not GROUP:
        return update(number, message=message(number, name, chat=chat, **{"from": sender}))
    text = f"@{USERNAME} {name}"
    mention = {"type": "mention", "offset": 0, "length": len(USERNAME) + 1}
    told = message(number, text, chat=chat, entities=[mention], **{"from": sender})
    return update(number, message=told)


def _answers(fake: FakeTelegram) -> Counter[str]:
    """Return how often each whole answer stands in its chat."""
    found: Counter[str] = Counter()
    for shown in fake.messages.values():
        text = shown["text"]
        text = shown_text(text) if shown.get("parse_mode") else text
        words = text.split()
        if "answer" in words and words[-1] == "end":
            found[words[words.index("answer") + 1]] += 1
    return found


def main() -> None:
    waves, speed = int((sys.argv[1:2] or ["3"])[0]), float((sys.argv[2:3] or ["1"])[0])
    with TemporaryDirectory() as folder:
        found = asyncio.run(storm(Path(folder), waves=waves, speed=speed))
    once = sum(count == 1 for count in found.answers.values())
    late = [at for at in found.refused if at >= MINUTE_MS]
    print(f"asked {found.asked}, answered once {once}, more than once {len(found.answers) - once}")
    print(f"dead letters {found.dead}; refusals {len(found.refused)}, after the first minute {len(late)}")
    print("calls of each second that say something:", *found.each_second)
    print(f"calls during a refusal's time {found.penalties}; calls {dict(found.calls)}")
    print(
        f"all chats answered after {found.chats_ms / 1_000:.1f} s, the group after {found.group_ms / 1_000:.1f} s"
    )


if __name__ == "__main__":
    main()
