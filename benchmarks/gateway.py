"""What a chat message costs on its way from a signed webhook to its answer, when its agent does nothing.

Callers stand in the process of the gateway and post to the adapter's own route without a socket between; all
else is as the server has it: a real SQLite file, the real clock, the collector as it is set there. Processor
time is that of the process, user and system, with all its threads; what callers alone take is told beside it.
"""

import asyncio
import gc
import json
import logging
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.application import as_served
from benchmarks.dispatch_mailbox import Nothing, worst_stall
from benchmarks.figures import Table, median, ms, size
from postroom.app.wiring import LOG_RESERVE
from postroom.concurrency import SystemTimer
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.chat import InboundKey, InboundMessage, InboundStatus
from postroom.contracts.clock import SystemClock
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.signing import SIGNATURE, TIMESTAMP, signature
from postroom.contracts.tables import Secret
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway.config import GatewayConfig
from postroom.gateway.events import MessageEvent, SendResult
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.platforms.webhook import DELIVERY, HookTable, WebhookAdapter, WebhookOptions
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform, SessionSource, build_session_key
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore

RATE = size(200, 50)
"""Messages a second that are offered, whatever becomes of them."""
SESSIONS = size(200, 10)
SECONDS = size(40, 1)
"""Longer than the half minute after which a session's activity is written down again."""
IDLE_SESSIONS = size(5_000, 50)
ABREAST = 64
MESSAGES = size(3_000, 50)
ROUNDS = size(3, 1)
PATIENCE = 600.0
ROUTE = "bench"
SECRET = "a secret of the benchmark"
TEXT = "What is the state of the build of module seven, and who looks after it?"


class Noting(Nothing):
    """Ends at once, and notes when it began with each message."""

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """End at once."""
        now = time.perf_counter()
        for message in activation.messages:
            self.began[message.content[0].data["message_id"]] = now
        return AgentRunResult(run_id=activation.run_id or "", response="ok")


class NotedWebhooks(WebhookAdapter):
    """The webhooks' own adapter; notes when each message had its answer."""

    def __init__(self, config: WebhookOptions) -> None:
        super().__init__(config)
        self.answered: dict[str, float] = {}
        self.awaited: dict[str, asyncio.Future[None]] = {}

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Keep an answer until it is fetched."""
        result = await super().send(chat_id, content, reply_to, metadata)
        if result.success and metadata is not None:
            for message_id in metadata["answers"]:
                self.answered[message_id] = time.perf_counter()
                waiting = self.awaited.pop(message_id, None)
                if waiting is not None:
                    waiting.set_result(None)
        return result


class Room:
    """A gateway at work over a file, and callers before it."""

    def __init__(self, store: SqliteStore) -> None:
        clock, timer = SystemClock(), SystemTimer()
        webhooks = WebhookOptions(routes={ROUTE: HookTable(secret=Secret(SECRET))})
        config = GatewayConfig(platforms={Platform.WEBHOOK: webhooks})
        self.store = store
        self.executor = Noting()
        self.adapter = NotedWebhooks(webhooks)
        self.posted = 0
        self.relay, sessions = Relay(store.store, {}), Sessions(store.chat, config, clock)
        presenter = StreamingPresenter(config.streaming, sessions, [self.adapter], clock, timer)
        self.mailbox = Mailbox(ChatExecutor(self.executor, presenter), store.runs, effects=ChatEffects())
        self.gateway = Gateway(
            config,
            stores=store.chat,
            outbox=store.runs.outbox,
            threads=store.runs.threads,
            run_queue=self.mailbox,
            presenter=presenter,
            relay=self.relay,
            clock=clock,
            timer=timer,
        )
        self._application = Starlette(routes=list(self.adapter.routes()))

    async def post(self, conversation: str) -> str:
        """Post a message as a caller does and return its id once it is kept."""
        self.posted += 1
        return await _posted(self._application, self.posted, conversation)

    async def ask(self, conversation: str) -> None:
        """Post a message and return when it has its answer."""
        message_id = await self.post(conversation)
        if message_id not in self.adapter.answered:
            waiting = self.adapter.awaited[message_id] = asyncio.get_running_loop().create_future()
            await waiting

    async def ask_all(self, sessions: int, messages: int) -> float:
        """Ask so many messages, in each session one after another; return how many a second were answered."""
        numbers = iter(range(messages))

        async def speak(session: int) -> None:
            for _ in numbers:
                await self.ask(f"c-{session}")

        began = time.perf_counter()
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for session in range(sessions):
                group.create_task(speak(session))
        return messages / (time.perf_counter() - began)

    async def rest(self) -> None:
        """Return when every message has its answer and is done with."""
        async with asyncio.timeout(PATIENCE):
            while any(status.is_open for status in await self.store.chat.intake_log.counts()):
                await asyncio.sleep(0.05)
        done = await self.store.chat.intake_log.counts()
        if done != {InboundStatus.DONE: self.posted} or len(self.executor.began) != self.posted:
            raise SystemExit(
                f"{self.posted} messages, {len(self.executor.began)} executed, at the end {done}"
            )


async def _posted(application: ASGIApp, number: int, conversation: str) -> str:
    """Sign and post a message as a caller does and return its id once it is kept."""
    delivery = f"d-{number}"
    body = json.dumps({"text": f"{TEXT} ({number})", "conversation": conversation}).encode()
    stamp = str(SystemClock().now() // 1000)
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        TIMESTAMP: stamp,
        SIGNATURE: signature(SECRET, stamp, body),
        DELIVERY: delivery,
    }
    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)

    await application(_scope(headers), receive, send)
    if said[0]["status"] != 202:
        raise SystemExit(f"a message was refused: {said}")
    return f"{ROUTE}/{delivery}"


async def _callers_alone() -> float:
    """Return the processor seconds of a caller's message, posted to an application that does nothing."""

    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    before = _processor_seconds()
    for number in range(MESSAGES):
        await _posted(take, number, f"c-{number % ABREAST}")
    return (_processor_seconds() - before) / MESSAGES


def _scope(headers: dict[str, str]) -> Scope:
    path = f"/webhook/{ROUTE}"
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 80),
    }


def silence() -> None:
    """Keep what the gateway logs out of the tables, failures of its own excepted."""
    logging.disable(logging.WARNING)


@asynccontextmanager
async def empty_store() -> AsyncIterator[SqliteStore]:
    """Give a store on an empty file."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        path = Path(folder) / "postroom.db"
        store = await asyncio.to_thread(SqliteStore.open, path, purpose="bench", log_reserve=LOG_RESERVE)
        try:
            yield store
        finally:
            await asyncio.to_thread(store.close)


@asynccontextmanager
async def open_room() -> AsyncIterator[Room]:
    """Give a gateway at work over an empty file."""
    async with empty_store() as store:
        room = Room(store)
        await room.mailbox.start_lifecycle_ready()
        try:
            async with room.gateway, asyncio.TaskGroup() as group:
                relaying = group.create_task(room.relay.serve(asyncio.Event()))
                with as_served():
                    yield room
                relaying.cancel()
        finally:
            await room.mailbox.aclose()


# Messages that come whether the gateway keeps up or not.


async def offered(table: Table) -> None:
    """Offer messages at random instants to random sessions, and see how long each takes to begin."""
    async with open_room() as room:
        for first in range(0, SESSIONS, ABREAST):
            async with asyncio.TaskGroup() as group:
                for session in range(first, min(first + ABREAST, SESSIONS)):
                    group.create_task(room.ask(f"c-{session}"))
        await room.rest()
        stop, groups, before = asyncio.Event(), room.store.grouping, _processor_seconds()
        async with asyncio.TaskGroup() as group:
            stall = group.create_task(worst_stall(stop))
            began = time.perf_counter()
            due, kept = await _offer(room, began)
            ended = time.perf_counter()
            busy = (_processor_seconds() - before) / (ended - began)
            answered = sum(room.adapter.answered.get(message_id, ended) < ended for message_id in kept)
            await room.rest()
            stop.set()
        _tell_latencies(table, room, due, kept, await _bare_commits(room))
        table.add("longest stall of the loop meanwhile", ms(stall.result()), "", None, "under 50 ms")
        _tell_keeping_up(table, answered, len(kept), ended - began)
        commits, changes = (now - then for now, then in zip(room.store.grouping, groups, strict=True))
        table.add(
            "cost of a message, including its callers",
            f"{changes / len(kept):.1f} changes in {commits / len(kept):.1f} commits,"
            f" {1000 * busy * (ended - began) / len(kept):.2f} ms of a processor",
            f"{busy:.0%} of one processor; the callers alone {ms(await _callers_alone())}",
            None,
            "2 ms, 4 changes",
        )


async def _bare_commits(room: Room) -> list[float]:
    """Return how long each of some commits of one row takes, one after another."""
    took = []
    for _ in range(SESSIONS):
        began = time.perf_counter()
        await room.store.store.probe()
        took.append(time.perf_counter() - began)
    return took


async def _offer(room: Room, began: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return when each message was due, and when it was kept and its caller told so."""
    chance = random.Random(7)
    due: dict[str, float] = {}
    kept: dict[str, float] = {}

    async def call(at: float, conversation: str) -> None:
        message_id = await room.post(conversation)
        due[message_id], kept[message_id] = at, time.perf_counter()

    at = began
    async with asyncio.timeout(SECONDS + PATIENCE), asyncio.TaskGroup() as group:
        while (at := at + chance.expovariate(RATE)) < began + SECONDS:
            await asyncio.sleep(max(at - time.perf_counter(), 0))
            group.create_task(call(at, f"c-{chance.randrange(SESSIONS)}"))
    return due, kept


def _tell_latencies(
    table: Table, room: Room, due: dict[str, float], kept: dict[str, float], bare: Sequence[float]
) -> None:
    """Tell how long messages took; a message is stored later than it is due, by the caller and its commit."""
    began, answered = room.executor.began, room.adapter.answered
    starts = [began[message_id] - at for message_id, at in due.items()]
    table.add(
        "from the planned time of the POST to the executor's start",
        _spread(starts),
        f"a bare durable commit of the same store, right after it: {_spread(bare)}",
        median(starts) / median(bare),
        "p50 < 10 ms, p99 < 50 ms",
    )
    table.add(
        "from the planned time of the POST to its 202",
        _spread([kept[message_id] - due[message_id] for message_id in due]),
    )
    ends = [answered[message_id] - began[message_id] for message_id in kept]
    table.add("from the executor's start, which ends at once, to the answer's delivery", _spread(ends))


def _tell_keeping_up(table: Table, answered: int, messages: int, seconds: float) -> None:
    table.add(
        "answers delivered meanwhile",
        f"{answered / seconds:,.0f} a second",
        f"{messages / seconds:,.0f} messages a second offered",
        answered / messages,
        "all but those at work",
    )


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"p50 {ms(p50)}, p99 {ms(p99)}, longest {ms(ordered[-1])}"


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# Sessions in which nobody speaks any more.


def idle(table: Table) -> None:
    """See what sessions cost that had one answer each, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gateway", "idle"]
    folder = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the process with idle sessions failed:\n{done.stderr[-2000:]}")
    bare, rest = json.loads(done.stdout.splitlines()[-1])
    table.add(
        f"memory of {IDLE_SESSIONS:,} idle sessions that each got an answer",
        f"{(rest - bare) / 2**20:.0f} MB more",
        f"bare {bare / 2**20:.0f} MB",
        None,
        "under 50 MB",
    )


async def _idle_sessions() -> None:
    """Print the resident bytes of this process before a message came, and with every session at rest."""
    silence()
    async with open_room() as room:
        bare = _resident()
        numbers = iter(range(IDLE_SESSIONS))

        async def speak() -> None:
            for session in numbers:
                await room.ask(f"c-{session}")

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for _ in range(ABREAST):
                group.create_task(speak())
        await room.rest()
        await room.mailbox.run_gc()  # as it does by itself once a minute
        gc.collect()
        print(json.dumps([bare, _resident()]))


def _resident() -> int:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmRSS:"))


# How many messages there could be at the most.


async def at_most(table: Table) -> None:
    """See how many messages go the whole way, beside how many the intake log alone takes."""
    bare, bare_used, whole, used = [], [], [], []
    async with open_room() as room:
        await room.ask_all(ABREAST, MESSAGES // 10)
        for _ in range(ROUNDS):
            async with empty_store() as store:
                before = _processor_seconds()
                bare.append(await _kept_a_second(store))
                bare_used.append((_processor_seconds() - before) / MESSAGES)
            before = _processor_seconds()
            whole.append(await room.ask_all(ABREAST, MESSAGES))
            await room.rest()
            used.append((_processor_seconds() - before) / MESSAGES)
    table.add(
        f"messages answered, {ABREAST} sessions that each wait for their answers",
        f"{median(whole):,.0f} messages/s",
        f"the intake log alone keeps {median(bare):,.0f} messages/s",
        median(whole) / median(bare),
    )
    table.add(
        "processor time of each of them, including the callers",
        f"{ms(median(used))}, least {ms(min(used))}",
        f"the intake log alone {ms(median(bare_used))}; the callers alone {ms(await _callers_alone())}",
        median(used) / median(bare_used),
        "2 ms",
    )


async def _kept_a_second(store: SqliteStore) -> float:
    drafts = iter([_draft(number) for number in range(MESSAGES)])

    async def keep() -> None:
        for draft in drafts:
            await store.chat.intake_log.receive(draft)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(ABREAST):
            group.create_task(keep())
    return MESSAGES / (time.perf_counter() - began)


def _draft(number: int) -> InboundMessage:
    """Return a message as the webhooks' adapter hands it over."""
    chat_id, message_id = f"{ROUTE}/c-{number % ABREAST}", f"{ROUTE}/d-{number}"
    source = SessionSource(
        platform=Platform.WEBHOOK, chat_id=chat_id, user_id=f"webhook:{ROUTE}", user_name=ROUTE
    )
    event = MessageEvent(text=f"{TEXT} ({number})", source=source, message_id=message_id, timestamp=1)
    key = InboundKey(platform="webhook", account=source.account, chat_id=chat_id, message_id=message_id)
    return InboundMessage(
        key=key, session_key=build_session_key(source), sender_id=source.user_id, body=event.to_body()
    )


async def main() -> None:
    """Print the tables."""
    silence()
    table = Table(f"Chat messages at {RATE} a second over {SESSIONS} sessions, on SQLite")
    await offered(table)
    table = Table("Chat messages: throughput, and memory of the sessions")
    await at_most(table)
    await asyncio.to_thread(idle, table)


if __name__ == "__main__":
    asyncio.run(_idle_sessions() if sys.argv[1:] == ["idle"] else main())
