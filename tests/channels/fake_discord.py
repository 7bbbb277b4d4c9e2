"""A fake Discord on loopback: its REST calls, its gateway with sessions and RESUME, and its file server.

It checks the rules that the adapter must keep (token, length, nonce), performs the faults of a test (failures, cuts,
refusals), and records everything that it was sent.
"""

import asyncio
import json
import zlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import WSMsgType, web

TOKEN = "MTAwMA.secret-of-the-fake.bot"
ME, ALICE, BOB, CAROL, DAVE = "1000", "2001", "2002", "2004", "2005"
GUILD, ROOM, THREAD, DIRECT = "3000", "3001", "3002", "3003"
PERSONS = {
    ME: {"id": ME, "username": "post", "discriminator": "0", "avatar": None, "bot": True},
    ALICE: {
        "id": ALICE,
        "username": "alice",
        "global_name": "Alice A.",
        "discriminator": "0",
        "avatar": None,
    },
    BOB: {"id": BOB, "username": "bob", "global_name": None, "discriminator": "0", "avatar": None},
    CAROL: {"id": CAROL, "username": "carol", "global_name": None, "discriminator": "0", "avatar": None},
    DAVE: {"id": DAVE, "username": "dave", "global_name": None, "discriminator": "0", "avatar": None},
}
FIRST_ID = 1_100_000_000_000_000_000


@dataclass
class Seen:
    """A REST call that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any = None
    file: tuple[str, str, bytes] | None = None


@dataclass
class Play:
    """The fault that the next matching REST call gets instead of an answer."""

    method: str
    path: str
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    lose: bool = False
    """It is carried out, then the connection is cut."""
    hang: bool = False
    """It is taken and never answered."""


class FakeDiscord:
    """The fake; give its `url` to the adapter as `base_url`, its `cdn` as `cdn_url`."""

    def __init__(self) -> None:
        self.url = self.cdn = ""
        self.seen: list[Seen] = []
        self.plays: deque[Play] = deque()
        self.said: list[dict[str, Any]] = []
        self.shown: dict[str, dict[str, Any]] = {}
        """The bot's messages as people see them now, by id."""
        self.gone: set[str] = set()
        """Messages of the bot that a person deleted: an edit is refused."""
        self.away = False
        """Whether every request and every connection ends without an answer."""
        self.channels: dict[str, dict[str, Any]] = {
            ROOM: {"id": ROOM, "type": 0, "guild_id": GUILD, "name": "room", "topic": "all of it"},
            THREAD: {"id": THREAD, "type": 11, "guild_id": GUILD, "name": "side", "parent_id": ROOM},
            DIRECT: {"id": DIRECT, "type": 1, "recipients": [PERSONS[ALICE]]},
        }
        self.history: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.close_identify: int | None = None
        self.refuse_resume = False
        self.silent_resume = False
        self.starts_left = 1000
        self.deaf = 0
        """How often the gateway still answers a connection with 503."""
        self.identified: list[dict[str, Any]] = []
        self.resumed: list[dict[str, Any]] = []
        self.heartbeats = 0
        self.goodbyes: list[int | None] = []
        self._log: list[dict[str, Any]] = []
        self._sequence = 0
        self._live: _Connection | None = None
        self._nonces: dict[str, dict[str, Any]] = {}
        self._ids = FIRST_ID
        self._over = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def serving(cls) -> AsyncIterator[Self]:
        """Serve on a free port of loopback."""
        fake = cls()
        app = web.Application(client_max_size=30_000_000)
        app.router.add_get("/gateway/", fake._gateway)
        app.router.add_get("/attachments/{name}", fake._file)
        app.router.add_route("*", "/api/v10/{path:.*}", fake._rest)
        runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        fake.cdn = f"http://127.0.0.1:{port}"
        fake.url = f"{fake.cdn}/api/v10"
        try:
            yield fake
        finally:
            fake._over.set()
            fake.cut()
            await runner.cleanup()

    # What people do.

    def new_id(self) -> str:
        self._ids += 1 << 22
        return str(self._ids)

    def message(
        self, text: str, *, channel: str = DIRECT, author: str = ALICE, **more: Any
    ) -> dict[str, Any]:
        """Make a message in Discord's form and add it to the channel's history, without an event."""
        made = {
            "id": self.new_id(),
            "channel_id": channel,
            "author": PERSONS[author],
            "content": text,
            "type": 0,
            "timestamp": "2026-11-21T18:00:00.000000+00:00",
            "edited_timestamp": None,
            "mentions": [],
            "attachments": [],
            "flags": 0,
            **more,
        }
        self.history[channel].append(dict(made))
        if "guild_id" in self.channels.get(channel, {}):
            made |= {"guild_id": GUILD, "member": {"nick": None, "roles": []}}
        return made

    async def say(self, text: str, **more: Any) -> dict[str, Any]:
        """Send a message to the bot."""
        made = self.message(text, **more)
        await self.tell("MESSAGE_CREATE", made)
        return made

    async def press(self, value: str, card: str, *, channel: str = DIRECT, author: str = ALICE) -> str:
        """Press a button; return the interaction's token."""
        who = (
            {"user": PERSONS[author]}
            if channel == DIRECT
            else {"member": {"user": PERSONS[author]}, "guild_id": GUILD}
        )
        made = {
            "id": self.new_id(),
            "application_id": ME,
            "type": 3,
            "token": f"aT0ken-{self._ids}",
            "version": 1,
        }
        made |= {
            "channel_id": channel,
            "message": {"id": card},
            "data": {"component_type": 2, "custom_id": value},
        }
        await self.tell("INTERACTION_CREATE", made | who)
        return made["token"]

    async def tell(self, name: str, data: Any) -> None:
        """Dispatch an update to the session, connected or not."""
        self._sequence += 1
        update = {"op": 0, "t": name, "s": self._sequence, "d": data}
        self._log.append(update)
        if self._live is not None:
            await self._live.send(update)

    async def write(self, raw: str) -> None:
        """Send a frame unchanged."""
        assert self._live is not None
        await self._live.socket.send_str(raw)

    # What goes wrong.

    def cut(self) -> None:
        """Cut the gateway's connection without a word."""
        if self._live is not None and self._live.request.transport is not None:
            self._live.request.transport.abort()
        self._live = None

    async def close(self, code: int) -> None:
        """Close the gateway's connection with a code."""
        assert self._live is not None
        live, self._live = self._live, None
        await live.socket.close(code=code)

    async def order(self, op: int, data: Any = None) -> None:
        """Send a frame other than a dispatch, for instance 7 (reconnect) or 9 (invalid session)."""
        assert self._live is not None
        await self._live.send({"op": op, "d": data, "s": None, "t": None})

    def play(self, method: str, path: str, **how: Any) -> None:
        """Set the answer to the next such call."""
        self.plays.append(Play(method, path, **how))

    def calls(self, method: str, path: str) -> list[Seen]:
        """All calls up to now."""
        return [one for one in self.seen if (one.method, one.path) == (method, path)]

    # The file server.

    async def _file(self, request: web.Request) -> web.Response:
        self.seen.append(Seen("GET", request.path, dict(request.query), dict(request.headers)))
        if request.path in self.moved:
            return web.Response(status=302, headers={"Location": self.moved[request.path]})
        found = self.files.get(request.path)
        return web.Response(status=404) if found is None else web.Response(body=found)

    # REST.

    async def _rest(self, request: web.Request) -> web.Response:
        seen = await self._noted(request)
        if self.away and request.transport is not None:
            request.transport.abort()
            return web.Response()
        play = next((one for one in self.plays if (one.method, one.path) == (seen.method, seen.path)), None)
        if play is not None:
            self.plays.remove(play)
            if play.hang:
                await self._over.wait()
            if not play.lose:
                headers = {"Via": "1.1 google"} | play.headers
                if isinstance(play.body, str):
                    return web.Response(text=play.body, status=play.status, headers=play.headers)
                return _json(play.body, play.status, headers)
        status, body = self._answer(seen)
        if play is not None and request.transport is not None:
            request.transport.abort()
        return web.Response(status=204) if status == 204 else _json(body, status)

    async def _noted(self, request: web.Request) -> Seen:
        path = "/" + request.match_info["path"]
        seen = Seen(request.method, path, dict(request.query), dict(request.headers))
        if request.content_type == "multipart/form-data":
            async for part in await request.multipart():
                if part.name == "payload_json":
                    seen.body = json.loads(await part.text())
                else:
                    seen.file = (part.filename or "", part.headers["Content-Type"], bytes(await part.read()))
        elif request.can_read_body:
            seen.body = await request.json()
        self.seen.append(seen)
        return seen

    def _answer(self, seen: Seen) -> tuple[int, Any]:
        if "callback" not in seen.path and seen.headers.get("Authorization") != f"Bot {TOKEN}":
            return 401, {"message": "401: Unauthorized", "code": 0}
        if seen.path == "/users/@me":
            return 200, PERSONS[ME]
        if seen.path == "/oauth2/applications/@me":
            told = {
                "id": ME,
                "name": "post",
                "description": "",
                "icon": None,
                "verify_key": "",
                "flags": 1 << 19,
            }
            return 200, told | {"bot_public": False, "bot_require_code_grant": False, "owner": PERSONS[BOB]}
        if seen.path == "/gateway/bot":
            limit = {
                "total": 1000,
                "remaining": self.starts_left,
                "reset_after": 90_000,
                "max_concurrency": 1,
            }
            return 200, {
                "url": f"{self.cdn.replace('http', 'ws')}/gateway/",
                "shards": 1,
                "session_start_limit": limit,
            }
        parts = seen.path.strip("/").split("/")
        if parts[0] == "interactions":
            return 204, None
        if parts[0] == "channels" and parts[1] in self.channels:
            return self._channel(seen, parts[1], parts[2:])
        return 404, {"message": "Unknown Channel", "code": 10003}

    def _channel(self, seen: Seen, channel: str, rest: list[str]) -> tuple[int, Any]:
        match seen.method, rest:
            case "GET", []:
                return 200, self.channels[channel]
            case "GET", ["messages"]:
                after, limit = int(seen.query["after"]), int(seen.query["limit"])
                found = sorted((one for one in self.history[channel] if int(one["id"]) > after), key=_by_id)
                return 200, found[:limit][::-1]
            case "POST", ["typing"]:
                return 204, None
            case "POST", ["messages"]:
                return self._posted(seen, channel)
            case "PATCH", ["messages", message_id]:
                if message_id in self.gone:
                    return 404, {"message": "Unknown Message", "code": 10008}
                if message_id in self.shown:
                    self.shown[message_id] |= seen.body
                return 200, {"id": message_id, "channel_id": channel} | seen.body
            case "PUT" | "DELETE", ["messages", _, "reactions", "👀", "@me"]:
                return 204, None
            case "DELETE", ["messages", message_id]:
                self.shown.pop(message_id, None)
                return 204, None
        return 405, {"message": "405: Method Not Allowed", "code": 0}

    def _posted(self, seen: Seen, channel: str) -> tuple[int, Any]:
        body = seen.body
        if len(body["content"]) > 2000:
            wrong = {
                "_errors": [{"code": "BASE_TYPE_MAX_LENGTH", "message": "Must be 2000 or fewer in length."}]
            }
            return 400, {"message": "Invalid Form Body", "code": 50035, "errors": {"content": wrong}}
        if body.get("enforce_nonce") and body["nonce"] in self._nonces:
            return 200, self._nonces[body["nonce"]]
        made = self.message(body["content"], channel=channel, author=ME)
        self.said.append(made | body)
        self.shown[made["id"]] = made | body
        self._nonces[body["nonce"]] = made
        return 200, made

    # The gateway.

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        if self.away:
            return web.Response(status=503)
        if self.deaf:
            self.deaf -= 1
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        connection = _Connection(request, socket)
        await connection.send({"op": 10, "d": {"heartbeat_interval": 45_000}, "s": None, "t": None})
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await self._heard(connection, json.loads(message.data))
        self.goodbyes.append(socket.close_code)
        if self._live is connection:
            self._live = None
        return socket

    async def _heard(self, connection: "_Connection", told: dict[str, Any]) -> None:
        if told["op"] == 1:
            self.heartbeats += 1
            await connection.send({"op": 11, "d": None, "s": None, "t": None})
        elif told["op"] == 2:
            await self._identify(connection, told["d"])
        elif told["op"] == 6:
            await self._resume(connection, told["d"])

    async def _identify(self, connection: "_Connection", told: dict[str, Any]) -> None:
        self.identified.append(told)
        if self.close_identify is not None or told["token"] != TOKEN:
            await connection.socket.close(code=self.close_identify or 4004)
            return
        self._log, self._sequence, self._live = [], 0, connection
        url = f"{self.cdn.replace('http', 'ws')}/gateway/"
        session = f"session-{len(self.identified)}"
        ready = {"v": 10, "user": PERSONS[ME], "guilds": [], "session_id": session, "resume_gateway_url": url}
        await self.tell("READY", ready | {"application": {"id": ME, "flags": 0}})

    async def _resume(self, connection: "_Connection", told: dict[str, Any]) -> None:
        self.resumed.append(told)
        if self.silent_resume:
            await connection.socket.close(code=4000)
            return
        if self.refuse_resume or told["session_id"] != f"session-{len(self.identified)}":
            await connection.send({"op": 9, "d": False, "s": None, "t": None})
            return
        self._live = connection
        for update in [one for one in self._log if one["s"] > told["seq"]]:
            await connection.send(update)
        await self.tell("RESUMED", {"_trace": []})


class _Connection:
    """One connection to the gateway, compressed as a stream."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self.request, self.socket = request, socket
        self._packer = zlib.compressobj() if request.query.get("compress") == "zlib-stream" else None

    async def send(self, told: dict[str, Any]) -> None:
        raw = json.dumps(told)
        try:
            if self._packer is None:
                await self.socket.send_str(raw)
            else:
                packed = self._packer.compress(raw.encode()) + self._packer.flush(zlib.Z_SYNC_FLUSH)
                await self.socket.send_bytes(packed)
        except ConnectionError:
            return


def _json(body: Any, status: int, headers: dict[str, str] | None = None) -> web.Response:
    """Discord names no charset, and the library takes nothing else for JSON."""
    return web.Response(
        body=json.dumps(body).encode(), status=status, headers=headers, content_type="application/json"
    )


def _by_id(message: dict[str, Any]) -> int:
    return int(message["id"])
