"""A chat page of our own: plain HTML, one script, one style sheet, served by us and by nobody else.

    page ──▶ POST /chat/messages {id, text} ──▶ kept ──▶ 202: the page shows "kept"
    page ◀── GET /chat/events: entries as they stand, numbered; a page that was cut off is told what it missed

`config.token` is what the first person signs in with, 16 characters or more. In `config.extra`:

| name | default | meaning |
|---|---|---|
| `name` | `owner` | whom `config.token` stands for |
| `people` | none | {name: token} of others; each has a chat of their own |
| `title` | `postroom` | what the page is headed with |

A person's stable id is `web:<name>`, and the chat is `<name>`. A browser that showed a token has a session of
twelve hours in an HttpOnly, SameSite=Strict cookie. What changes something must come from our own page: it
carries the header `X-Postroom: 1`, and its Origin and Sec-Fetch-Site are looked at.

The page makes a message's id, so that sending it again doubles nothing. Of each chat the newest 500 entries
are kept in memory for pages that open or come back; after a restart they are gone from new pages, though not
from the conversation.
"""

import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, ClassVar, Final
from urllib.parse import quote

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from postroom.contracts.clock import Clock, Timer, milliseconds
from postroom.contracts.errors import TooLarge
from postroom.contracts.files import FileContent, FileStore, media_type_of, safe_name
from postroom.contracts.messages import Json
from postroom.gateway.capabilities import NO_LIMIT, ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import (
    ALL_MEDIA,
    Attachment,
    ButtonPress,
    Card,
    MessageEvent,
    MessageType,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.platforms.http_adapter import (
    HttpAdapter,
    Refused,
    json_response,
    parse_object,
    read_body,
    require_json,
)
from postroom.gateway.platforms.options import Options
from postroom.gateway.platforms.safe_text import clean
from postroom.gateway.platforms.web_log import ChatLog, Entry, ShownFile
from postroom.gateway.platforms.web_pages import (
    SESSION_LIFE,
    Visitors,
    chat_page,
    read_people,
    require_own_page,
    sign_in_page,
    static_file,
    token_in_form,
)
from postroom.gateway.session import Platform, SessionSource
from postroom.gateway.spooling import MOST_FILES, head_of, spooled
from postroom.sse import SseResponse

LARGEST_JSON: Final = 1024 * 1024
LARGEST_FORM: Final = 8 * 1024
LONGEST_MESSAGE: Final = 100_000
MOST_UPLOADED: Final = 100
LARGEST_BODY: Final = 20_000_000
_UPLOAD_SECONDS: Final = 600
_SHOWN_INLINE: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_KINDS: Final = {"image": MessageType.PHOTO, "video": MessageType.VIDEO, "audio": MessageType.AUDIO}
_MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_-]{8,64}")
_VALUE: Final = re.compile(r"[\x20-\x7e]{1,60}")


class WebOptions(Options, frozen=True):
    """The names that stand in the table above."""

    name: str = "owner"
    people: dict[str, str] = {}  # noqa: RUF012 - made anew for each
    title: Annotated[str, Meta(min_length=1, max_length=80, description="a text of 1 to 80 characters")] = (
        "postroom"
    )


class WebAdapter(HttpAdapter):
    """The chat page.

    Raises:
        ConfigError: there is no token, one is too short, or a setting is not known or none.
    """

    platform: ClassVar = Platform.WEB
    beats = True
    capabilities: ClassVar = ChannelCapabilities(
        # The interval only bounds how often the page is told.
        limit=NO_LIMIT,
        edits=True,
        streams=True,
        typing=True,
        media=ALL_MEDIA,
        min_edit_interval_ms=100,
    )

    def __init__(
        self, config: PlatformConfig, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        options = WebOptions.read(config)
        people = read_people(config.token, options.name, options.people)
        self._title = options.title
        self._visitors = Visitors(people, self._clock)
        epoch = secrets.token_hex(4)
        self._logs = {name: ChatLog(epoch) for name in people}
        self._uploaded: dict[str, OrderedDict[str, ShownFile]] = {name: OrderedDict() for name in people}
        """Files that were uploaded and are not in a message yet, the newest of them."""

    def routes(self) -> Sequence[BaseRoute]:
        """Return the page and what its script calls."""
        return (
            Route("/chat", self._serve(self._page), methods=["GET"]),
            Route("/chat/static/{name}", self._serve(static_file), methods=["GET"]),
            Route("/chat/sign-in", self._serve(self._sign_in), methods=["POST"]),
            Route("/chat/sign-out", self._serve(self._sign_out), methods=["POST"]),
            Route("/chat/messages", self._serve(self._take), methods=["POST"]),
            Route("/chat/messages/{id}", self._serve(self._edit), methods=["PUT"]),
            Route("/chat/messages/{id}", self._serve(self._take_back), methods=["DELETE"]),
            Route("/chat/files", self._serve(self._upload), methods=["POST"]),
            Route("/chat/files/{sha256}", self._serve(self._file), methods=["GET"]),
            Route("/chat/buttons", self._serve(self._press), methods=["POST"]),
            Route("/chat/events", self._serve(self._events), methods=["GET"]),
        )

    async def disconnect(self) -> None:
        """Take nothing more and let the open pages go; they come back by themselves."""
        await super().disconnect()
        for log in self._logs.values():
            log.end()

    # The page and who opens it.

    async def _page(self, request: Request) -> Response:
        name = self._visitors.who(request.cookies.get(_cookie_name(request)))
        if name is None:
            return sign_in_page(self._title, _base(request))
        return chat_page(self._title, _base(request), name)

    async def _sign_in(self, request: Request) -> Response:
        require_own_page(request, is_form=True)
        token = token_in_form(request, await read_body(request, LARGEST_FORM))
        address = request.client.host if request.client else ""
        try:
            session = self._visitors.sign_in(token, address)
        except Refused as refusal:
            self.liveness.refused += 1
            return sign_in_page(self._title, _base(request), refusal)
        return _with_session(request, session, milliseconds(SESSION_LIFE) // 1000)

    async def _sign_out(self, request: Request) -> Response:
        require_own_page(request, is_form=True)
        session = request.cookies.get(_cookie_name(request), "")
        name = self._visitors.who(session)
        self._visitors.sign_out(session)
        if name is not None:
            self._logs[name].beat()
        return _with_session(request, "", 0)

    def _who(self, request: Request) -> str:
        name = self._visitors.who(request.cookies.get(_cookie_name(request)))
        if name is None:
            raise Refused(401, "signed_out", "sign in first")
        self._heard()
        return name

    async def _read(self, request: Request) -> tuple[str, dict[str, Json]]:
        """Return who sent a change, and what."""
        require_own_page(request)
        name = self._who(request)
        require_json(request)
        return name, parse_object(await read_body(request, LARGEST_JSON))

    # What comes in.

    async def _take(self, request: Request) -> Response:
        name, data = await self._read(request)
        files = self._sent_with(name, data.get("files", []))
        event = self._event(name, data.get("id"), data.get("text"), has_files=bool(files))
        event.media = tuple(map(_attachment, files))
        await self._keep(event)
        log, message_id = self._logs[name], str(event.message_id)
        if log.find(message_id) is None:
            entry = Entry(
                entry_id=message_id, kind="message", text=event.text, at=self._clock.now(), files=files
            )
            log.put(entry)
        return json_response({"id": message_id, "state": "kept"}, 202)

    async def _upload(self, request: Request) -> Response:
        """Keep a file that is to be sent; the message that names it comes behind it."""
        require_own_page(request)
        name = self._who(request)
        told = request.query_params.get("name", "")
        most = LARGEST_BODY
        try:
            async with asyncio.timeout(_UPLOAD_SECONDS), spooled(request.stream(), most=most) as found:
                head = await asyncio.to_thread(head_of, found.path)
                media_type = media_type_of(head, told)
                await self._store().put_bytes(found)
        except TooLarge as error:
            raise Refused(413, "too_large", error.message) from error
        except TimeoutError as error:
            raise Refused(408, "too_slow", "the file did not come in time") from error
        file = ShownFile(
            sha256=found.sha256,
            name=safe_name(told, media_type, 1),
            media_type=media_type,
            size=found.size,
        )
        uploaded = self._uploaded[name]
        uploaded[file.sha256] = file
        while len(uploaded) > MOST_UPLOADED:
            uploaded.popitem(last=False)
        shown = {"id": file.sha256, "name": file.name, "type": file.media_type, "size": file.size}
        return json_response(shown, 201)

    async def _file(self, request: Request) -> Response:
        """Give a file that this person's chat shows; only pictures that cannot act are shown by a browser."""
        name, sha256 = self._who(request), request.path_params["sha256"]
        file = self._known(name, sha256)
        if file is None:
            raise Refused(404, "not_found", "this chat shows no such file")
        way = "inline" if file.media_type in _SHOWN_INLINE else "attachment"
        headers = {
            "Content-Disposition": f"{way}; filename*=UTF-8''{quote(file.name, safe='')}",
            "Content-Length": str(file.size),
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "private, max-age=3600",
        }
        media_type = file.media_type if way == "inline" else "application/octet-stream"
        return StreamingResponse(self._store().content(sha256), media_type=media_type, headers=headers)

    def _sent_with(self, name: str, ids: Json) -> tuple[ShownFile, ...]:
        """Return the files that a message names: just uploaded, or shown by this chat already."""
        if not isinstance(ids, list) or len(ids) > MOST_FILES or not all(isinstance(one, str) for one in ids):
            raise Refused(400, "malformed", f"`files` is a list of at most {MOST_FILES} ids")
        known = [self._known(name, one) for one in ids]
        if None in known:
            raise Refused(400, "unknown_file", "a file is not here any more; choose it again")
        return tuple(file for file in known if file is not None)

    def _known(self, name: str, sha256: str) -> ShownFile | None:
        """Return a file that a person has uploaded, or was shown."""
        return self._uploaded[name].get(sha256) or self._logs[name].file(sha256)

    def _store(self) -> FileStore:
        if self.files is None:
            raise Refused(503, "unavailable", "files are not taken at the moment", retry_after=2)
        return self.files

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a file that was uploaded: it is in the store."""
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"it is larger than {max_bytes:,} bytes", value=attachment.size)
        async for piece in self._store().content(attachment.ref):
            yield piece

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Show a file, which is in the store."""
        log = self._logs.get(chat_id)
        if log is None:
            return _nobody()
        entry_id = _entry_id(metadata)
        mime = attachment.mime or "application/octet-stream"
        file = ShownFile(sha256=data.sha256, name=attachment.name or "file", media_type=mime, size=data.size)
        entry = Entry(
            entry_id=entry_id, kind="answer", text=caption or "", at=self._clock.now(), files=(file,)
        )
        log.put(entry)
        return self._shown(entry_id)

    async def _edit(self, request: Request) -> Response:
        name, data = await self._read(request)
        event = self._event(name, request.path_params["id"], data.get("text"))
        await self._receiver().edited(event)
        self._receiver()
        self._logs[name].change(str(event.message_id), text=event.text, edited=True)
        return json_response({"id": event.message_id, "state": "kept"})

    async def _take_back(self, request: Request) -> Response:
        require_own_page(request)
        name = self._who(request)
        message_id = _message_id(request.path_params["id"])
        await self._receiver().deleted(self._source(name), message_id)
        self._receiver()
        self._logs[name].change(message_id, text="", gone=True)
        return json_response({"id": message_id, "state": "gone"})

    async def _press(self, request: Request) -> Response:
        name, data = await self._read(request)
        value = data.get("value")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise Refused(400, "malformed", "`value` is no button's")
        press = ButtonPress(
            source=self._source(name),
            value=value,
            message_id=_message_id(data.get("message_id")),
            press_id=_message_id(data.get("press_id")),
        )
        note = await self._receiver().pressed(press)
        return json_response({"note": note})

    async def _events(self, request: Request) -> Response:
        name = self._who(request)
        session = request.cookies.get(_cookie_name(request))
        log = self._logs[name]
        watcher = log.watch()
        events = log.events(
            watcher,
            request.headers.get("last-event-id") or request.query_params.get("after"),
            may_watch=lambda: self._visitors.who(session) == name,
        )
        return SseResponse(events, left=lambda: log.leave(watcher))

    def _event(self, name: str, message_id: Json, text: Json, *, has_files: bool = False) -> MessageEvent:
        if not isinstance(text, str) or not (text.strip() or has_files):
            raise Refused(400, "malformed", "there is no text in it")
        if len(text) > LONGEST_MESSAGE:
            raise Refused(413, "too_large", f"the text is longer than {LONGEST_MESSAGE} characters")
        event = MessageEvent(
            text=clean(text),
            source=self._source(name),
            message_id=_message_id(message_id),
            timestamp=self._clock.now(),
        )
        if event.is_command():
            event.message_type = MessageType.COMMAND
        return event

    def _source(self, name: str) -> SessionSource:
        return SessionSource(
            platform=self.platform, chat_id=name, user_id=f"web:{name}", user_name=name, chat_type="dm"
        )

    def _beat(self) -> None:
        for log in self._logs.values():
            log.beat()

    # What goes out.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a message, or a draft that grows; it is there for pages that open later too."""
        log, told = self._logs.get(chat_id), metadata or {}
        if log is None:
            return _nobody()
        answers = told.get("answers") or (() if reply_to is None else (reply_to,))
        shown_as = log.answer(
            _entry_id(metadata),
            content,
            map(str, answers),
            final=bool(told.get("final")),
            at=self._clock.now(),
        )
        return self._shown(shown_as)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Show other words in a message's place."""
        told = metadata or {}
        fields: dict[str, Json] = {"text": content}
        if told.get("final"):
            fields["draft"] = False
        result = self._changed(chat_id, message_id, fields)
        if result.success:
            self._logs[chat_id].read(map(str, told.get("answers", ())))
        return result

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a message no more."""
        return self._changed(chat_id, message_id, {"text": "", "gone": True, "draft": False})

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show for some seconds that an answer is being written."""
        log = self._logs.get(chat_id)
        if log is not None:
            log.typing()

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Show a question with buttons."""
        log = self._logs.get(chat_id)
        if log is None:
            return _nobody()
        entry_id = _entry_id(metadata)
        log.read(map(str, (metadata or {}).get("read", ())))
        log.card(entry_id, card, at=self._clock.now())
        return self._shown(entry_id)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a card as it stands now."""
        buttons = tuple((one.label, one.value) for one in card.buttons)
        return self._changed(chat_id, message_id, {"text": card.text, "buttons": buttons})

    def _changed(self, chat_id: str, entry_id: str, fields: dict[str, Json]) -> SendResult:
        log = self._logs.get(chat_id)
        if log is None or not log.change(entry_id, **fields):
            return SendResult.failed(SendErrorKind.NOT_FOUND, "the page shows this no longer")
        return self._shown(entry_id)

    def _shown(self, entry_id: str) -> SendResult:
        self._said()
        return SendResult.sent(entry_id)


def _attachment(file: ShownFile) -> Attachment:
    kind = _KINDS.get(file.media_type.partition("/")[0], MessageType.DOCUMENT)
    return Attachment(kind=kind, ref=file.sha256, mime=file.media_type, name=file.name, size=file.size)


def _nobody() -> SendResult:
    return SendResult.failed(SendErrorKind.NOT_FOUND, "nobody has this chat on the page")


def _entry_id(metadata: Metadata | None) -> str:
    """Return an id for what is said; a repetition of the same has the same."""
    key = (metadata or {}).get("dedupe_key")
    if key is None:
        return f"out-{secrets.token_hex(12)}"
    return f"out-{hashlib.sha256(str(key).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _message_id(told: Json) -> str:
    if not isinstance(told, str) or not _MESSAGE_ID.fullmatch(told):
        raise Refused(400, "malformed", "an id is 8 to 64 letters, digits, _ and -")
    return told


def _base(request: Request) -> str:
    """Return the page's own path, wherever the routes are mounted."""
    return f"{request.scope.get('root_path', '')}/chat"


def _cookie_name(request: Request) -> str:
    """Cookies know no ports: two servers on one machine must not overwrite each other's."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"postroom_chat_{port}" if re.fullmatch(r"[0-9]{1,5}", port) else "postroom_chat"


def _with_session(request: Request, session: str, seconds: int) -> Response:
    answer = RedirectResponse(_base(request), status_code=303, headers={"Cache-Control": "no-store"})
    answer.set_cookie(
        _cookie_name(request),
        session,
        max_age=seconds,
        path=_base(request),
        secure=request.scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )
    return answer
