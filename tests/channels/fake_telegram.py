"""A fake of Telegram's Bot API on loopback, with real sockets and its wire protocol.

It keeps updates until a poll's offset has moved past them, refuses marks as MarkdownV2 is read, ends an older
poll with 409 when a newer one comes, and does wrong what the test tells it to.
"""

import asyncio
import json
import re
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

from postroom.gateway.capabilities import RateLimits
from postroom.gateway.platforms.telegram import TelegramAdapter

TOKEN = "4711:AAE-very_secret_token"
BOT_ID = 4711
USERNAME = "PostroomBot"
ADA = {"id": 77, "is_bot": False, "first_name": "Ada", "last_name": "L", "username": "ada"}
PRIVATE = {"id": 77, "type": "private", "first_name": "Ada", "last_name": "L"}
GROUP = {"id": -100200, "type": "supergroup", "title": "Team"}
OURSELVES = {"id": BOT_ID, "is_bot": True, "first_name": "Postroom", "username": USERNAME}


@dataclass
class Refusal:
    """An answer that says no."""

    status: int
    description: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class Raw:
    """An answer given byte for byte, by something that is not Telegram."""

    status: int
    body: bytes
    headers: str = ""


CUT = object()
"""The connection ends before the request is read."""
LOST = object()
"""The request is done, and the connection ends before its answer."""
TORN = object()
"""The request is done, and the connection ends in the middle of its answer."""
SILENCE = object()
"""There is no answer, and the connection stays."""


@dataclass
class Call:
    """A request that arrived."""

    method: str
    fields: dict[str, Any]
    files: dict[str, tuple[str | None, str, bytes]] = field(default_factory=dict)


class FakeTelegram:
    """The fake: scripted updates and faults, and a record of what it received."""

    def __init__(self) -> None:
        self.token = TOKEN
        self.calls: list[Call] = []
        self.paths: list[str] = []
        self.faults: dict[str, deque[Any]] = defaultdict(deque)
        self.updates: list[Any] = []
        self.acknowledged: list[int] = []
        self.webhook: dict[str, Any] = {}
        self.messages: dict[int, dict[str, Any]] = {}
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        self.unmeasured: set[str] = set()
        """Paths whose answers lack a length."""
        self.deaf = False
        """Whether every connection is refused at once."""
        self.url = ""
        self._ids = 500
        self._news = asyncio.Event()
        self._poll: asyncio.Future[None] | None = None
        self._over = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeTelegram"]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self._over.set()
            server.close()
            self.hang_up()
            await server.wait_closed()

    # What a test asks for.

    def feed(self, *updates: Any) -> None:
        """Give these to the next poll, and to each after it until they are acknowledged."""
        self.updates.extend(updates)
        self._news.set()

    def sent(self, method: str) -> list[dict[str, Any]]:
        """The fields of all calls of a method."""
        return [call.fields for call in self.calls if call.method == method]

    def refusal(self, call: Call) -> Refusal | None:
        """Return why a fake with limits refuses a call."""
        return None

    def hang_up(self) -> None:
        """End all connections at once, as a network does."""
        for writer in list(self._open):
            writer.transport.abort()

    # The wire.

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while not self.deaf and await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines if line}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        path = first.split(" ")[1]
        self.paths.append(path)
        if path.startswith("/file/"):
            status, content, more = self._download(path)
        else:
            answer = await self._method(path, headers, body)
            if answer in (CUT, LOST):
                writer.transport.abort()
                return False
            if answer is SILENCE:
                await self._over.wait()
                return False
            if answer is TORN:
                writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"ok": true, "res')
                await writer.drain()
                writer.transport.abort()
                return False
            status, content, more = _rendered(answer)
        if path in self.unmeasured:
            writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n0\r\n\r\n")
        else:
            begin = f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{more}\r\n"
            writer.write(begin.encode() + content)
        await writer.drain()
        return True

    async def _method(self, path: str, headers: dict[str, str], body: bytes) -> Any:
        match = re.fullmatch(r"/bot([^/]*)/(\w+)", path)
        if match is None or match[1] != self.token:
            return Refusal(401 if match else 404, "Unauthorized" if match else "Not Found")
        call = _read_call(match[2], headers.get("content-type", ""), body)
        fault = self.faults[call.method].popleft() if self.faults[call.method] else self.refusal(call)
        if fault is None or fault in (LOST, TORN):
            self.calls.append(call)
            done = await getattr(self, f"_{call.method}")(call)
            return done if fault is None else fault
        self.calls.append(call)
        return fault

    def _download(self, path: str) -> tuple[int, bytes, str]:
        prefix = f"/file/bot{self.token}/"
        content = self.contents.get(path.removeprefix(prefix)) if path.startswith(prefix) else None
        if isinstance(content, bytes):
            return 200, content, ""
        return (302, b"", "Location: http://127.0.0.1:9/evil\r\n") if content else (404, b"{}", "")

    # The methods.

    async def _getMe(self, call: Call) -> Any:
        return OURSELVES

    async def _setMyCommands(self, call: Call) -> Any:
        return True

    async def _getUpdates(self, call: Call) -> Any:
        if self.webhook.get("url"):
            return Refusal(409, "Conflict: can't use getUpdates method while webhook is active")
        offset = call.fields.get("offset")
        if offset is not None:
            past = [one for one in self.updates if isinstance(one, dict) and _number_of(one) < offset]
            self.acknowledged += [one["update_id"] for one in past]
            self.updates = [one for one in self.updates if one not in past]
        if self._poll is not None and not self._poll.done():
            self._poll.cancel()
        if not self.updates:
            self._news.clear()
            self._poll = asyncio.ensure_future(self._wait())
            try:
                await self._poll
            except asyncio.CancelledError:
                return Refusal(409, "Conflict: terminated by other getUpdates request")
        return list(self.updates[:100])

    async def _wait(self) -> None:
        news, over = asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({news, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            over.cancel()

    async def _getWebhookInfo(self, call: Call) -> Any:
        return {"url": self.webhook.get("url", ""), "pending_update_count": 0}

    async def _setWebhook(self, call: Call) -> Any:
        self.webhook = call.fields
        return True

    async def _deleteWebhook(self, call: Call) -> Any:
        self.webhook = {}
        return True

    async def _sendMessage(self, call: Call) -> Any:
        return self._said(call, "text", 4096)

    async def _sendDocument(self, call: Call) -> Any:
        return self._said(call, "caption", 1024)

    _sendPhoto = _sendVoice = _sendAudio = _sendVideo = _sendSticker = _sendDocument

    async def _editMessageText(self, call: Call) -> Any:
        shown = self.messages.get(call.fields["message_id"])
        if shown is None:
            return Refusal(400, "Bad Request: message to edit not found")
        if _same(shown, call.fields):
            return Refusal(400, "Bad Request: message is not modified: the content is exactly the same")
        return self._said(call, "text", 4096, call.fields["message_id"])

    async def _deleteMessage(self, call: Call) -> Any:
        if self.messages.pop(call.fields["message_id"], None) is None:
            return Refusal(400, "Bad Request: message to delete not found")
        return True

    async def _sendChatAction(self, call: Call) -> Any:
        return True

    async def _setMessageReaction(self, call: Call) -> Any:
        return True

    async def _answerCallbackQuery(self, call: Call) -> Any:
        return True

    async def _getFile(self, call: Call) -> Any:
        found = self.files.get(call.fields["file_id"])
        return found if found is not None else Refusal(400, "Bad Request: invalid file_id")

    async def _getChat(self, call: Call) -> Any:
        known = {77: PRIVATE, -100200: GROUP}
        return known.get(call.fields["chat_id"]) or Refusal(400, "Bad Request: chat not found")

    def _said(self, call: Call, name: str, limit: int, message_id: int | None = None) -> Any:
        text = call.fields.get(name, "")
        if call.fields.get("parse_mode") == "MarkdownV2":
            try:
                text = shown_text(text)
            except ValueError as error:
                return Refusal(400, f"Bad Request: can't parse entities: {error}")
        if name == "text" and not text.strip():
            return Refusal(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > limit:
            return Refusal(
                400, f"Bad Request: {'message' if name == 'text' else 'message caption'} is too long"
            )
        if message_id is None:
            self._ids += 1
            message_id = self._ids
        self.messages[message_id] = call.fields
        return {"message_id": message_id, "chat": {"id": call.fields["chat_id"]}, "text": text}


def message(message_id: int, text: str | None = None, **more: Any) -> dict[str, Any]:
    """A message as Telegram tells it."""
    said = {} if text is None else {"text": text}
    return {"message_id": message_id, "from": ADA, "chat": PRIVATE, "date": 1_700_000_000, **said, **more}


def update(update_id: int, **told: Any) -> dict[str, Any]:
    """An update in Telegram's form; by default, a message in a private chat."""
    return {"update_id": update_id, **(told or {"message": message(update_id, f"message {update_id}")})}


def shown_text(text: str) -> str:
    """The text that MarkdownV2 leaves when its marks are read.

    Raises:
        ValueError: a mark is not escaped, or has no end.
    """
    marks: list[str] = []
    shown = ""
    line_begins, at = True, 0
    while at < len(text):
        one, code = text[at], bool(marks) and marks[-1].startswith("`")
        if one == "\\" and at + 1 < len(text) and 0 < ord(text[at + 1]) <= 126:
            shown, line_begins, at = shown + text[at + 1], text[at + 1] == "\n", at + 2
        elif one not in ("`" if code else "_*[]()~`>#+-=|{}.!\n"):
            shown, line_begins, at = shown + one, False, at + 1
        elif one == "\n":
            if ">" in marks and text[at + 1 : at + 2] != ">" and marks.pop() != ">":
                raise ValueError("a mark within a quote has no end")
            shown, line_begins, at = shown + one, True, at + 1
        elif one == ">":
            if not line_begins:
                raise ValueError("character '>' is reserved")
            if ">" not in marks:
                marks.append(">")
            line_begins, at = False, at + 1
        elif one == "]" and marks and marks[-1] == "[":
            marks.pop()
            link = re.compile(r"\(((?:\\.|[^)\\])*)\)", re.DOTALL).match(text, at + 1)
            if link is None:
                raise ValueError("a link has no address")
            at = link.end()
        else:
            mark = next((wide for wide in ("```", "__", "||") if text.startswith(wide, at)), one)
            mark = one if code and marks[-1] == "`" else mark
            if mark not in ("```", "`", "__", "_", "*", "~", "||", "["):
                raise ValueError(f"character '{one}' is reserved and must be escaped")
            at += len(mark)
            if marks and marks[-1] == mark and mark != "[":
                marks.pop()
            else:
                marks.append(mark)
                if mark == "```" and (language := re.compile(r"[^\s`]*\n").match(text, at)):
                    at = language.end()
    if marks not in ([], [">"]):
        raise ValueError(f"can't find end of the entity that {marks[-1]} begins")
    return shown


def _number_of(told: dict[str, Any]) -> int:
    number = told.get("update_id")
    return number if isinstance(number, int) else 2**60


def _same(shown: dict[str, Any], fields: dict[str, Any]) -> bool:
    return all(shown.get(name) == fields.get(name) for name in ("text", "parse_mode", "reply_markup"))


def _rendered(answer: Any) -> tuple[int, bytes, str]:
    if isinstance(answer, Raw):
        return answer.status, answer.body, answer.headers
    if isinstance(answer, Refusal):
        told = {"ok": False, "error_code": answer.status, "description": answer.description}
        if answer.parameters:
            told["parameters"] = answer.parameters
        return answer.status, json.dumps(told).encode(), ""
    return 200, json.dumps({"ok": True, "result": answer}).encode(), ""


def _read_call(method: str, content_type: str, body: bytes) -> Call:
    if not content_type.startswith("multipart/"):
        return Call(method=method, fields=json.loads(body))
    parsed: Message = BytesParser(policy=HTTP).parsebytes(
        f"Content-Type: {content_type}\r\n\r\n".encode() + body
    )
    call = Call(method=method, fields={})
    for part in parsed.get_payload():
        assert isinstance(part, Message)
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if part.get_filename() is not None:
            call.files[name] = (part.get_filename(), part.get_content_type(), content)
        else:
            text = content.decode()
            call.fields[name] = json.loads(text) if re.fullmatch(r"-?\d+|[\[{].*", text) else text
    return call


class Hurried(TelegramAdapter):
    """Says things as fast as it can, where Telegram's limits would make a test last for minutes."""

    capabilities = replace(TelegramAdapter.capabilities, rates=RateLimits())
