"""A fake Slack: the Web API over HTTP and Socket Mode over web sockets, both on loopback.

It supports the part of the protocol that the adapter needs, in the documented shapes, records requests and acknowledgements,
and performs the faults of a test: refuse, be slow, lose an answer, cut.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

BOT_TOKEN = "xoxb-very-secret-bot"
APP_TOKEN = "xapp-very-secret-app"
SECRET = "very-secret-signing"
TICKET = "very-secret-ticket"
_QUIET = logging.getLogger(__name__)
_QUIET.setLevel(logging.CRITICAL)  # a test looks for secrets in all logs, and these would be the fake's
TEAM, BOT, BOT_ID = "T0TEAM", "U0BOT", "B0BOT"
ANN, BEN = "U0ANN", "U0BEN"
CHANNEL, DM = "C0GENERAL", "D0ANN"
_REPLIES = {"channel", "ts", "cursor", "inclusive", "latest", "limit", "oldest", "include_all_metadata"}
"""The arguments of `conversations.replies`."""
SCOPES = (
    "chat:write,im:history,channels:history,app_mentions:read,commands,files:read,files:write,reactions:write"
)


@dataclass
class Call:
    """A request that arrived."""

    method: str
    body: dict[str, Any]
    headers: dict[str, str]
    raw: bytes = b""


@dataclass
class Fault:
    """A response to send once instead of an answer."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)
    lost: bool = False
    """The request is carried out, and the connection cut before the answer."""
    silent: bool = False
    """No response is sent at all."""


@dataclass
class Wire:
    """One socket of the app."""

    peer: ServerConnection
    acked: list[str] = field(default_factory=list)
    closed: bool = False

    async def say(self, frame: object) -> None:
        await self.peer.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    def cut(self) -> None:
        self.peer.transport.abort()

    def fall_silent(self) -> None:
        """Stay connected and answer nothing, pings neither."""
        self.peer.transport.pause_reading()  # type: ignore[attr-defined]


@dataclass
class FakeSlack:
    """The fake; `faults` are used up, one a call of their method, before anything is answered."""

    scopes: str | None = SCOPES
    hello: object = field(default_factory=lambda: {"type": "hello", "num_connections": 1})
    socket_url: str | None = None
    calls: list[Call] = field(default_factory=list)
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    posted: dict[str, dict[str, Any]] = field(default_factory=dict)
    wires: list[Wire] = field(default_factory=list)
    files: dict[str, Fault] = field(default_factory=dict)
    threads: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By the `ts` of its first message: the messages of a thread, the oldest first."""
    thread_page: int = 1_000
    """Maximum messages of a thread in one answer, whatever the request asks for."""
    held: list[object] = field(default_factory=list)
    """The messages that the next socket gets at once: they arrived while none was open."""
    away: bool = False
    """Whether every request and every socket ends without an answer."""
    _keys: dict[str, str] = field(default_factory=dict)
    _stamp: Any = field(default_factory=lambda: count(1))

    async def __aenter__(self) -> Self:
        self._http = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._sockets: Server = await serve(
            self._socket, "127.0.0.1", 0, close_timeout=0.2, ping_interval=None, logger=_QUIET
        )
        self.port = self._http.sockets[0].getsockname()[1]
        self.ws_port = next(iter(self._sockets.sockets)).getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self.wires:
            wire.cut()
        self._sockets.close()
        await self._sockets.wait_closed()
        self._http.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def will(self, method: str, *faults: Fault) -> None:
        self.faults.setdefault(method, deque()).extend(faults)

    def called(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    @property
    def acked(self) -> list[str]:
        return [envelope for wire in self.wires for envelope in wire.acked]

    @property
    def live(self) -> list[Wire]:
        return [wire for wire in self.wires if not wire.closed]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._exchange(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a client that went away is part of the tests
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        verb, path, _ = head[0].split(" ", 2)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method = path.rpartition("/")[2] if path.startswith("/api/") else path
        if self.away:
            return
        self.calls.append(Call(method, _body(headers, raw), headers, raw))
        waiting = self.faults.get(method)
        fault = waiting.popleft() if waiting else None
        if fault is not None and fault.silent:
            await reader.read()
            return
        if fault is None or fault.lost:
            answer = self._file(path) if verb == "GET" else self._answer(self.calls[-1])
        else:
            answer = fault
        if fault is None or not fault.lost:
            _write(writer, answer)
            await writer.drain()

    def _answer(self, call: Call) -> Fault:
        given = call.headers.get("authorization", "").removeprefix("Bearer ")
        if call.method.startswith("/upload/"):
            return Fault(body=b"OK")
        wanted = APP_TOKEN if call.method == "apps.connections.open" else BOT_TOKEN
        if given != wanted:
            return Fault(body={"ok": False, "error": "invalid_auth"})
        made = getattr(self, "_" + call.method.replace(".", "_"))(call.body)
        headers = {} if self.scopes is None else {"x-oauth-scopes": self.scopes}
        return Fault(body={"ok": True, **made} if "error" not in made else made, headers=headers)

    def _auth_test(self, _: object) -> dict[str, Any]:
        return {"team_id": TEAM, "user_id": BOT, "bot_id": BOT_ID, "team": "fake", "url": "https://fake/"}

    def _apps_connections_open(self, _: object) -> dict[str, Any]:
        return {"url": self.socket_url or f"ws://127.0.0.1:{self.ws_port}/link/?ticket={TICKET}"}

    def _chat_postMessage(self, body: dict[str, Any]) -> dict[str, Any]:
        key = body.get("client_msg_id")
        if key in self._keys:
            return {"ts": self._keys[key], "channel": body["channel"]}
        ts = f"1700000000.{next(self._stamp):06d}"
        self.posted[ts] = body
        if key:
            self._keys[key] = ts
        return {"ts": ts, "channel": body["channel"]}

    def _chat_postEphemeral(self, _: object) -> dict[str, Any]:
        return {"message_ts": f"1700000000.{next(self._stamp):06d}"}

    def _chat_update(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["ts"] not in self.posted:
            return {"ok": False, "error": "message_not_found"}
        self.posted[body["ts"]] |= body
        return {"ts": body["ts"], "channel": body["channel"]}

    def _chat_delete(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.posted.pop(body["ts"], None) is None:
            return {"ok": False, "error": "message_not_found"}
        return {"ts": body["ts"]}

    def _reactions_add(self, _: object) -> dict[str, Any]:
        return {}

    _reactions_remove = _reactions_add

    def _conversations_info(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["channel"] == DM:
            return {"channel": {"id": DM, "is_im": True}}
        return {"channel": {"id": body["channel"], "name": "general", "is_im": False}}

    def _conversations_replies(self, body: dict[str, str]) -> dict[str, Any]:
        """Answer as Slack documents it: the oldest first, in pages, the first message in each of them."""
        if unknown := body.keys() - _REPLIES:
            return {"ok": False, "error": "invalid_arguments", "unknown": sorted(unknown)}
        if "channels:history" not in (self.scopes or SCOPES):
            return {"ok": False, "error": "missing_scope", "needed": "channels:history"}
        if body.get("channel") != CHANNEL:
            return {"ok": False, "error": "channel_not_found"}
        if body.get("ts") not in self.threads:
            return {"ok": False, "error": "thread_not_found"}
        for name in ("latest", "oldest"):
            if not re.fullmatch(r"\d{10}\.\d{6}", body.get(name, "1700000000.000000")):
                return {"ok": False, "error": f"invalid_ts_{name}"}
        limit, start = body.get("limit", "1000"), body.get("cursor", "0")
        if not limit.isdigit() or not 0 < int(limit) < 1_000:
            return {"ok": False, "error": "invalid_limit"}
        root, *replies = self.threads[body["ts"]]
        latest, inclusive = body.get("latest", "9"), body.get("inclusive") == "true"
        found = [one for one in replies if one["ts"] < latest or (inclusive and one["ts"] == latest)]
        end = int(start) + min(int(limit), self.thread_page)
        has_more = end < len(found)
        return {
            "messages": [root, *found[int(start) : end]],
            "has_more": has_more,
            "response_metadata": {"next_cursor": str(end) if has_more else ""},
        }

    def _files_getUploadURLExternal(self, _: object) -> dict[str, Any]:
        return {"upload_url": f"http://127.0.0.1:{self.port}/upload/one", "file_id": "F0NEW"}

    def _files_completeUploadExternal(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"files": body["files"]}

    def _file(self, path: str) -> Fault:
        return self.files.get(path, Fault(404, b"no"))

    async def _socket(self, peer: ServerConnection) -> None:
        wire = Wire(peer)
        if self.away:
            wire.cut()
            return
        self.wires.append(wire)
        try:
            await wire.say(self.hello)
            while self.held:
                await wire.say(self.held.pop(0))
            async for frame in peer:
                wire.acked.append(json.loads(frame)["envelope_id"])
        except ConnectionClosed:
            pass  # as above
        finally:
            wire.closed = True


def _body(headers: Mapping[str, str], raw: bytes) -> dict[str, Any]:
    kind = headers.get("content-type", "")
    if kind.startswith("application/json"):
        return dict(json.loads(raw))
    return dict(parse_qsl(raw.decode())) if kind.startswith("application/x-www-form") else {}


def _write(writer: asyncio.StreamWriter, answer: Fault) -> None:
    body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **answer.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {answer.status} X\r\n{lines}\r\n".encode() + body)


# What Slack sends, in the shapes it documents.


def message(text: str = "hello", ts: str = "1700000001.000100", **words: Any) -> dict[str, Any]:
    """Return a message of Ann's in her direct messages, unless told otherwise."""
    kind = "im" if words.get("channel", DM) == DM else "channel"
    made = {"type": "message", "user": ANN, "text": text, "ts": ts, "channel": DM, "channel_type": kind}
    return {**made, "client_msg_id": "9d1c", "team": TEAM, "event_ts": ts, **words}


def callback(event: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "token": "legacy",
        "team_id": TEAM,
        "api_app_id": "A0APP",
        "event": dict(event),
        "type": "event_callback",
        "event_id": "Ev0",
        "event_time": 1_700_000_001,
    }


def envelope(envelope_id: str, payload: object, kind: str = "events_api", **words: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "envelope_id": envelope_id,
        "payload": payload,
        "accepts_response_payload": False,
        **words,
    }


def inbound(envelope_id: str, *args: Any, **words: Any) -> dict[str, Any]:
    return envelope(envelope_id, callback(message(*args, **words)))


def slash(command: str = "/stop", text: str = "", **words: Any) -> dict[str, str]:
    return {
        "token": "legacy",
        "command": command,
        "text": text,
        "team_id": TEAM,
        "channel_id": CHANNEL,
        "channel_name": "general",
        "user_id": ANN,
        "user_name": "ann",
        "trigger_id": "13345.738.8088",
        "response_url": "https://hooks.slack.com/commands/1/2",
        **words,
    }


def pressed(value: str = "approve-1", action_id: str = "postroom:0", **words: Any) -> dict[str, Any]:
    ts = "1700000002.000200"
    return {
        "type": "block_actions",
        "team": {"id": TEAM},
        "user": {"id": ANN, "username": "ann"},
        "container": {"type": "message", "message_ts": ts, "channel_id": CHANNEL},
        "channel": {"id": CHANNEL, "name": "general"},
        "message": {"type": "message", "user": BOT, "bot_id": BOT_ID, "ts": ts, "text": "May I?"},
        "trigger_id": "99.88.77",
        "response_url": "https://hooks.slack.com/actions/1/2",
        "actions": [{"type": "button", "action_id": action_id, "value": value, "action_ts": "1700000003.1"}],
        **words,
    }


def signed(body: bytes, now_ms: int, secret: str = SECRET) -> dict[str, str]:
    stamp = str(now_ms // 1000)
    mac = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={mac}"}


def form(fields: Mapping[str, str]) -> bytes:
    return urlencode(fields).encode()
