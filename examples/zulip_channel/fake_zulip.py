"""A fake Zulip server for tests. It has an event queue and messages, and can simulate faults."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from urllib.parse import parse_qs

import uvicorn
from postroom_zulip import ZulipAdapter, ZulipOptions
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.tables import Secret
from postroom.gateway.platforms.base import Platform, PlatformConfig
from postroom.testing.channels import ANN, BEN, EVE, PLAIN, ChannelDriver, Extra, Sent, Shown

BOT, EMAIL, KEY = 1, "bot@zulip.test", "zulip-key-0123456789abcdef"
CHANNEL, TOPIC = 500, "lights"


class FakeZulip:
    """A fake Zulip server on a free port. Tests set and read its fields."""

    def __init__(self) -> None:
        self.url = ""
        self.messages: dict[int, dict[str, Any]] = {}
        self.queue: str | None = None
        self.events: list[dict[str, Any]] = []
        self.acknowledged = -1
        self.is_away = False
        self.polls = self.tries = 0
        self.faults: list[str] = []
        """The faults of the next new messages, one each: `limit`, `refuse` or `lose`."""
        self._next_event = self._next_queue = 0

    def feed(self, type: str, *, again: bool = False, **told: Any) -> int:
        """Add an event to the queue and return its id. If `again`, the next queue repeats an unread event."""
        number, self._next_event = self._next_event, self._next_event + 1
        self.events.append({"id": number, "type": type, "again": again, **told})
        return number

    def store(self, sender: int, told: Mapping[str, Any]) -> dict[str, Any]:
        """Store a message from a person or the bot."""
        number = 1_000 + len(self.messages)
        self.messages[number] = {"id": number, "sender_id": sender, "timestamp": 1_700_000_000, **told}
        return self.messages[number]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeZulip"]:
        """Serve requests until the block ends."""
        app = Starlette(
            routes=[Route("/api/v1/{path:path}", self._call, methods=["GET", "POST", "PATCH", "DELETE"])]
        )
        server = uvicorn.Server(
            uvicorn.Config(app, port=0, log_level="critical", lifespan="off", access_log=False)
        )
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined, method-assign]
        task = asyncio.create_task(server._serve())
        try:
            while not server.started:
                await asyncio.sleep(0.001)
            host, port = server.servers[0].sockets[0].getsockname()
            self.url = f"http://{host}:{port}"
            yield self
        finally:
            self.is_away, server.should_exit, server.force_exit = True, True, True
            await task

    async def _call(self, request: Request) -> Response:
        if self.is_away:
            return Response("bad gateway", 502)
        login = b64encode(f"{EMAIL}:{KEY}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {login}":
            return _error(401, "UNAUTHORIZED", "Invalid API key")
        told = dict(request.query_params)
        told |= {name: values[-1] for name, values in parse_qs((await request.body()).decode()).items()}
        match request.method, request.path_params["path"].split("/"):
            case "GET", ["users", "me"]:
                return _done(user_id=BOT, full_name="Post Bot")
            case "POST", ["register"]:
                again = [one for one in self.events if one["again"] and one["id"] > self.acknowledged]
                self._next_queue += 1
                self.queue, self.events, self.acknowledged = f"q{self._next_queue}", [], -1
                self._next_event = 0
                for event in again:
                    self.feed(**{name: value for name, value in event.items() if name != "id"})
                newest = max(self.messages, default=0)
                return _done(queue_id=self.queue, last_event_id=-1, max_message_id=newest)
            case "GET", ["events"]:
                return await self._poll(told)
            case "GET", ["messages"]:
                later = [one for one in self.messages.values() if one["id"] > int(told["anchor"])]
                return _done(messages=later[: int(told["num_after"])])
            case "GET", ["messages", number]:
                return _done(message=self.messages[int(number)])
            case "POST", ["messages"]:
                return self._send(told)
            case "PATCH", ["messages", number]:
                self.messages[int(number)]["content"] = told["content"]
            case "DELETE", ["messages", number]:
                self.messages[int(number)]["is_deleted"] = True
        return _done()

    async def _poll(self, told: Mapping[str, str]) -> Response:
        self.polls += 1
        if told["queue_id"] != self.queue:
            return _error(400, "BAD_EVENT_QUEUE_ID", "Bad event queue id")
        self.acknowledged = max(self.acknowledged, int(told["last_event_id"]))
        # The poll counts iterations of the event loop, not seconds. The clock of a test advances at each
        # iteration, and the adapter abandons a poll that lasts longer than `poll_seconds` by that clock.
        for _ in range(20):
            if found := [one for one in self.events if one["id"] > self.acknowledged]:
                return _done(events=found)
            await asyncio.sleep(0)
        self.feed("heartbeat")
        # A message may have arrived in the last iteration. If the client received only the heartbeat, it
        # would acknowledge the message, too.
        return _done(events=[one for one in self.events if one["id"] > self.acknowledged])

    def _send(self, told: Mapping[str, str]) -> Response:
        self.tries += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "limit":
            return JSONResponse(
                {"result": "error", "code": "RATE_LIMIT_HIT", "msg": "slow down", "retry-after": 120.0}, 429
            )
        if fault == "refuse":
            return _error(400, "BAD_REQUEST", "Not authorized to send to this channel")
        stored = self.store(BOT, {"type": told["type"], "content": told["content"]})
        return Response("bad gateway", 502) if fault == "lose" else _done(id=stored["id"])


def _done(**told: Any) -> Response:
    return JSONResponse({"result": "success", "msg": "", **told})


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"result": "error", "code": code, "msg": message}, status)


class ZulipDriver(ChannelDriver):
    """Drive the Zulip channel in tests, as the people on a Zulip server."""

    platform, kind = Platform("zulip"), ZulipAdapter
    people: ClassVar = {ANN: "77", BEN: "78", EVE: "79"}
    chat = "77"
    lacks: ClassVar = {"deletes": "an event of a deleted direct message does not name its conversation"}
    secrets = (KEY,)

    def __init__(self, fake: FakeZulip) -> None:
        self.fake = fake

    def config(self, *, secret: str | None = None) -> PlatformConfig:
        return ZulipOptions(site=self.fake.url, email=EMAIL, token=Secret(secret or KEY), allow=self.allow)

    async def say(self, text: str, person: str = ANN, extra: Extra = PLAIN) -> Sent:
        number, flags = int(self.people[person]), []
        told: dict[str, Any] = {"sender_full_name": person.title(), "content": text}
        if extra.group:
            told |= {"type": "stream", "stream_id": CHANNEL, "display_recipient": "harbour", "subject": TOPIC}
            if extra.mention:
                told["content"], flags = f"@**Post Bot** {text}", ["mentioned"]
        else:
            told |= {"type": "private", "display_recipient": [{"id": BOT}, {"id": number}]}
        stored = self.fake.store(number, told)
        event = self.fake.feed("message", message=stored, flags=flags)
        return Sent(text, person, str(stored["id"]), stored, event)

    async def redeliver(self, sent: Sent) -> None:
        self.fake.feed("message", again=True, message=sent.raw, flags=[])

    def acknowledged(self, sent: Sent) -> bool:
        return self.fake.acknowledged >= sent.number

    async def edit(self, sent: Sent, text: str) -> None:
        self.fake.messages[int(sent.id)]["content"] = text
        self.fake.feed("update_message", message_id=int(sent.id), content=text)

    def shown(self) -> Sequence[Shown]:
        ours = [one for one in self.fake.messages.values() if one["sender_id"] == BOT]
        return [Shown(str(one["id"]), one["content"]) for one in ours if not one.get("is_deleted")]

    async def malformed(self) -> None:
        self.fake.feed("message", message={"id": "sevenfold"}, flags=[])

    def looks(self) -> int:
        return self.fake.polls

    def tries(self) -> int:
        return self.fake.tries

    def limit(self) -> None:
        self.fake.faults.append("limit")

    def refuse(self) -> None:
        self.fake.faults.append("refuse")

    def lose_answer(self) -> None:
        self.fake.faults.append("lose")

    async def go_away(self) -> None:
        self.fake.is_away = True

    async def come_back(self) -> None:
        self.fake.is_away = False
