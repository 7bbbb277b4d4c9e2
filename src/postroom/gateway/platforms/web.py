"""The chat page of postroom: plain HTML, one script and one style sheet, all from this server.

    page ──▶ POST /chat/messages {id, text, conversation} ──▶ stored ──▶ 202: the page shows "sent"
    page ◀── GET /chat/conversations: the list; GET /chat/conversations/<id>: the newest entries, then older
    page ◀── GET /chat/events: numbered changes; after a lost connection the page gets what it missed

The first person signs in with `token`, of 16 characters or more.

A person's stable id is `web:<name>`, and the chat is `<name>`. Each conversation is a thread of that chat
and has its own session. The conversation `main` is the chat itself, with mail and reminders. A browser
that showed a token is signed in for twelve hours, by a signed, HttpOnly, SameSite=Strict cookie. It outlives
a restart. The store keeps the hash of each session that was signed out. A change must come from our own page:
it carries the header `X-Postroom: 1`, and its Origin and Sec-Fetch-Site are checked.

The page makes the id of a message, so that a message that is sent twice is stored once. The store keeps every
entry except drafts until the person deletes the conversation. The server renders the Markdown of entries.
"""

import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import quote

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from postroom.contracts.clock import Clock, Timer, milliseconds
from postroom.contracts.errors import StoreError, TooLarge, UnknownMessage
from postroom.contracts.files import FileContent, media_type_of, safe_name
from postroom.contracts.messages import Json, storable
from postroom.contracts.records import replace
from postroom.contracts.tables import Secret, Table
from postroom.contracts.web_chats import WebEntry
from postroom.gateway.capabilities import NO_LIMIT, ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import (
    FILES,
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
from postroom.gateway.platforms.safe_text import clean, one_line
from postroom.gateway.platforms.web_log import MAIN, ChatLog, Entry, ShownFile
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
from postroom.markdown import AS_WRITTEN, Markdown
from postroom.sse import SseResponse
from postroom.stores.chats.files import FileStore
from postroom.stores.chats.web_chats import WebChats

LARGEST_JSON: Final = 1024 * 1024
LARGEST_FORM: Final = 8 * 1024
LONGEST_MESSAGE: Final = 100_000
MOST_UPLOADED: Final = 100
LARGEST_BODY: Final = 20_000_000
MOST_ENTRIES: Final = 40
"""Entries of a conversation that the page reads at once."""
MOST_CONVERSATIONS: Final = 50
"""Conversations of the list that the page reads at once."""
LONGEST_TITLE: Final = 60
_UPLOAD_SECONDS: Final = 600
_SHOWN_INLINE: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_-]{8,64}")
_CONVERSATION_ID: Final = re.compile(r"[A-Za-z0-9_-]{4,64}")
_VALUE: Final = re.compile(r"[\x20-\x7e]{1,60}")


class WebPerson(Table, frozen=True, kw_only=True):
    """The table [platforms.web.people.<name>]: a further person."""

    token: Secret = Secret()


class WebOptions(PlatformConfig, frozen=True, kw_only=True):
    """The table [platforms.web]."""

    name: str = "owner"
    """The person who signs in with `token`."""
    people: Mapping[str, WebPerson] = {}
    """The other people; each has separate conversations."""
    title: Annotated[
        str, Meta(min_length=1, max_length=80, extra={"write": "a text of 1 to 80 characters"})
    ] = "postroom"
    """The heading of the page."""


class WebAdapter(HttpAdapter):
    """The chat page.

    Raises:
        ConfigError: There is no token, a token is too short, or an option is unknown or invalid.
    """

    platform: ClassVar = Platform.WEB
    options: ClassVar = WebOptions
    at_root: ClassVar = True
    largest_body: ClassVar = LARGEST_BODY
    beats = True
    capabilities: ClassVar = ChannelCapabilities(
        # The interval only bounds how often the page is updated.
        limit=NO_LIMIT,
        edits=True,
        streams=True,
        reasoning=True,
        typing=True,
        media=FILES,
        min_edit_interval_ms=100,
    )

    def __init__(self, config: WebOptions, *, clock: Clock | None = None, timer: Timer | None = None) -> None:
        super().__init__(config, clock=clock, timer=timer)
        people = read_people(
            config.token, config.name, {name: one.token for name, one in config.people.items()}
        )
        self._title = config.title
        self._visitors = Visitors(people, self._clock)
        epoch = secrets.token_hex(4)
        self._logs = {name: ChatLog(epoch) for name in people}
        self._uploaded: dict[str, OrderedDict[str, ShownFile]] = {name: OrderedDict() for name in people}
        """Files that were uploaded and are not in a message yet, the newest of them."""
        self._without_main: set[str] = set()
        """The people who deleted the conversation `main` in this process, and wrote nothing there since."""
        self._markdown = Markdown(headings=AS_WRITTEN)

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
            Route("/chat/conversations", self._serve(self._list), methods=["GET"]),
            Route("/chat/conversations/{id}", self._serve(self._conversation), methods=["GET"]),
            Route("/chat/conversations/{id}", self._serve(self._rename), methods=["PUT"]),
            Route("/chat/conversations/{id}", self._serve(self._delete), methods=["DELETE"]),
            Route("/chat/conversations/{id}/stop", self._serve(self._stop), methods=["POST"]),
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
        name = await self._person(request)
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
        if name is not None:
            ends_at = self._clock.now() + milliseconds(SESSION_LIFE)  # at the latest
            await self._chats().end_session(_hidden(session), ends_at=ends_at)
            self._logs[name].beat()
        return _with_session(request, "", 0)

    async def _person(self, request: Request) -> str | None:
        """Return who has signed in with this browser; None if nobody has, or the person signed out.

        Raises:
            StoreError: Whether the person signed out is unknown.
        """
        session = request.cookies.get(_cookie_name(request), "")
        name = self._visitors.who(session)
        if name is None or await self._chats().is_session_ended(_hidden(session)):
            return None
        return name

    async def _may_watch(self, request: Request) -> bool:
        try:
            return await self._person(request) is not None
        except StoreError:
            return False  # the page reconnects and gets the reason

    async def _who(self, request: Request) -> str:
        name = await self._person(request)
        if name is None:
            raise Refused(401, "signed_out", "sign in first")
        self._heard()
        return name

    async def _read(self, request: Request) -> tuple[str, dict[str, Json]]:
        """Return who sent a change, and what."""
        require_own_page(request)
        name = await self._who(request)
        require_json(request)
        return name, parse_object(await read_body(request, LARGEST_JSON))

    # Conversations.

    async def _list(self, request: Request) -> Response:
        """Return the 50 conversations that were active last, or the next 50 before a position."""
        name = await self._who(request)
        found = await self._chats().conversations(name, before=_before(request), limit=MOST_CONVERSATIONS + 1)
        shown = [
            {"id": one.conversation_id, "title": one.title, "at": one.active_at}
            for one in found[:MOST_CONVERSATIONS]
        ]
        return json_response({"conversations": shown, "more": len(found) > MOST_CONVERSATIONS})

    async def _conversation(self, request: Request) -> Response:
        """Return the newest 40 entries, or the 40 before a position, and the number of the newest change."""
        name, before = await self._who(request), _before(request)
        conversation = _conversation_id(request.path_params["id"])
        log = self._logs[name]
        number = log.number
        found = await self._chats().entries(name, conversation, before=before, limit=MOST_ENTRIES + 1)
        stored = (Entry.from_body(one.body) for one in found[:MOST_ENTRIES])
        entries = [log.find(one.entry_id) or one for one in stored]
        if before is None:
            entries += log.drafts(conversation)
        shown = await self._rendered(sorted(entries, key=lambda one: one.order))
        return json_response({"entries": shown, "more": len(found) > MOST_ENTRIES, "event": number})

    async def _rename(self, request: Request) -> Response:
        name, data = await self._read(request)
        conversation, title = _conversation_id(request.path_params["id"]), data.get("title")
        if not isinstance(title, str) or not (title := _title(title)):
            raise Refused(400, "malformed", "`title` must be text that is not empty")
        if not await self._chats().rename(name, conversation, title):
            raise Refused(404, "not_found", "there is no such conversation; it may have been deleted")
        self._logs[name].list_anew()
        return json_response({"id": conversation, "title": title})

    async def _delete(self, request: Request) -> Response:
        """Stop the active runs of a conversation, drop what waits there, and delete its entries."""
        require_own_page(request)
        name = await self._who(request)
        conversation = _conversation_id(request.path_params["id"])
        source = self._source(name, conversation)
        for command in ("stop all", "new"):
            await self._receiver().pressed(ButtonPress(source=source, value=command))
        await self._chats().delete(name, conversation)
        if conversation == MAIN:
            self._without_main.add(name)
        self._logs[name].forget(conversation)
        self._logs[name].list_anew()
        return json_response({"id": conversation, "state": "deleted"})

    async def _stop(self, request: Request) -> Response:
        """Stop the active run of a conversation; the part of its answer that is shown stays."""
        name, _ = await self._read(request)
        source = self._source(name, _conversation_id(request.path_params["id"]))
        note = await self._receiver().pressed(ButtonPress(source=source, value="stop"))
        return json_response({"note": note})

    def _chats(self) -> WebChats:
        if self.web_chats is None:
            raise Refused(503, "unavailable", "conversations cannot be read now", retry_after=2)
        return self.web_chats

    async def _entry(self, name: str, entry_id: str) -> Entry | None:
        """Return an entry as it stands, from the newest ones or from the store."""
        if (found := self._logs[name].find(entry_id)) is not None:
            return found
        stored = await self._chats().entry(name, entry_id)
        return None if stored is None else Entry.from_body(stored.body)

    async def _log(self, name: str) -> ChatLog:
        """Return a person's log, whose next position is greater than every position in the store."""
        log = self._logs[name]
        if not log.newest_order:
            newest = await self._chats().conversations(name, limit=1)
            log.newest_order = max(log.newest_order, newest[0].active_at if newest else 0)
        return log

    async def _show(self, name: str, *entries: Entry) -> bool:
        """Store the entries of one conversation that are not drafts, and show all of them.

        Return False, and show nothing, if the conversation was deleted.

        Raises:
            StoreError: The entries could not be stored. Nothing is shown.
        """
        log = await self._log(name)
        placed = [log.placed(replace(one, text=storable(one.text))) for one in entries]
        stored = [
            WebEntry(
                person=name,
                conversation_id=one.conversation,
                entry_id=one.entry_id,
                position=one.order,
                body=one.to_body(),
            )
            for one in placed
            if not one.draft
        ]
        if stored and not await self._chats().put(stored):
            return False
        for one in placed:
            log.put(one)
        return True

    async def _rendered(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Return entries as the page gets them, with their texts as safe HTML."""
        bodies = await self._markdown.render({place: one.text for place, one in enumerate(entries)})
        return [{**one.shown(), "html": str(bodies[place].html)} for place, one in enumerate(entries)]

    # What comes in.

    async def _take(self, request: Request) -> Response:
        name, data = await self._read(request)
        conversation = _conversation_id(data.get("conversation", MAIN))
        files = await self._sent_with(name, data.get("files", []))
        event = self._event(name, conversation, data.get("id"), data.get("text"), has_files=bool(files))
        event.media = tuple(map(_attachment, files))
        message_id, log = str(event.message_id), await self._log(name)
        is_new = await self._entry(name, message_id) is None
        order = log.next_order(self._clock.now())  # above its answer, however soon that comes
        if is_new:
            if conversation == MAIN:
                self._without_main.discard(name)
            await self._open(name, conversation, event.text or files[0].name)
        await self._keep(event)
        if is_new:
            entry = Entry(
                entry_id=message_id,
                kind="message",
                text=event.text,
                at=self._clock.now(),
                conversation=conversation,
                order=order,
                answered=log.has_answer(message_id),
                files=files,
            )
            await self._show(name, entry)
        if event.get_command() == "title" and event.get_command_args():
            await self._chats().rename(name, conversation, _title(event.get_command_args()))
            log.list_anew()
        return json_response({"id": message_id, "state": "kept"}, 202)

    async def _open(self, name: str, conversation: str, text: str) -> None:
        """Create a conversation if it does not exist; its title is the first line of a text."""
        if await self._chats().conversation(name, conversation) is None:
            await self._chats().open(name, conversation, title=_title(text) or "Untitled")
            self._logs[name].list_anew()

    async def _upload(self, request: Request) -> Response:
        """Store a file; a later message names it by its hash."""
        require_own_page(request)
        name = await self._who(request)
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
            raise Refused(408, "too_slow", "the file did not arrive in time") from error
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
        return json_response(file.shown(), 201)

    async def _file(self, request: Request) -> Response:
        """Give a file that this person's chat shows; only pictures that cannot act are shown by a browser."""
        name, sha256 = await self._who(request), request.path_params["sha256"]
        file = await self._known(name, sha256, request.query_params.get("entry"))
        if file is None:
            raise Refused(404, "not_found", "this chat has no such file")
        pieces = self._store().content(sha256)
        try:
            first = await anext(pieces, b"")
        except UnknownMessage as error:
            raise Refused(404, "not_found", "the content of this file was deleted") from error
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
        return StreamingResponse(_begun(first, pieces), media_type=media_type, headers=headers)

    async def _sent_with(self, name: str, ids: Json) -> tuple[ShownFile, ...]:
        """Return the files that a message names: just uploaded, or shown by this chat already."""
        if not isinstance(ids, list) or len(ids) > MOST_FILES or not all(isinstance(one, str) for one in ids):
            raise Refused(400, "malformed", f"`files` must be a list of at most {MOST_FILES} ids")
        known = [await self._known(name, one) for one in ids]
        if None in known:
            raise Refused(400, "unknown_file", "a file is no longer here; choose it again")
        return tuple(file for file in known if file is not None)

    async def _known(self, name: str, sha256: str, entry_id: str | None = None) -> ShownFile | None:
        """Return a file that the person uploaded, or that the named entry or a recent entry shows."""
        found = self._uploaded[name].get(sha256) or self._logs[name].file(sha256)
        if found is None and entry_id is not None:
            entry = await self._entry(name, entry_id)
            files = () if entry is None else entry.files
            found = next((file for file in files if file.sha256 == sha256), None)
        return found

    def _store(self) -> FileStore:
        if self.files is None:
            raise Refused(503, "unavailable", "files are not accepted now", retry_after=2)
        return self.files

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a file that was uploaded: it is in the store."""
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"it exceeds {max_bytes:,} bytes", value=attachment.size)
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
        if chat_id not in self._logs:
            return _nobody()
        entry_id = _entry_id(metadata)
        mime = attachment.mime or "application/octet-stream"
        file = ShownFile(sha256=data.sha256, name=attachment.name or "file", media_type=mime, size=data.size)
        entry = Entry(
            entry_id=entry_id,
            kind="answer",
            text=caption or "",
            at=self._clock.now(),
            conversation=_conversation_of(metadata),
            files=(file,),
        )
        return await self._told(chat_id, entry, title=file.name)

    async def _edit(self, request: Request) -> Response:
        name, data = await self._read(request)
        shown = await self._entry(name, _message_id(request.path_params["id"]))
        conversation = MAIN if shown is None else shown.conversation
        event = self._event(name, conversation, request.path_params["id"], data.get("text"))
        await self._receiver().edited(event)
        self._receiver()
        if shown is not None:
            await self._show(name, replace(shown, text=event.text, edited=True))
        return json_response({"id": event.message_id, "state": "kept"})

    async def _take_back(self, request: Request) -> Response:
        require_own_page(request)
        name = await self._who(request)
        message_id = _message_id(request.path_params["id"])
        shown = await self._entry(name, message_id)
        conversation = MAIN if shown is None else shown.conversation
        await self._receiver().deleted(self._source(name, conversation), message_id)
        self._receiver()
        if shown is not None:
            await self._show(name, replace(shown, text="", files=(), gone=True))
        return json_response({"id": message_id, "state": "gone"})

    async def _press(self, request: Request) -> Response:
        name, data = await self._read(request)
        value, card_id = data.get("value"), _message_id(data.get("message_id"))
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise Refused(400, "malformed", "`value` does not belong to a button")
        press_id = _message_id(data.get("press_id"))
        card = await self._entry(name, card_id)
        source = self._source(name, MAIN if card is None else card.conversation)
        press = ButtonPress(source=source, value=value, message_id=card_id, press_id=press_id)
        note = await self._receiver().pressed(press)
        return json_response({"note": note})

    async def _events(self, request: Request) -> Response:
        name = await self._who(request)
        log = self._logs[name]
        watcher = log.watch()
        events = log.events(
            watcher,
            request.headers.get("last-event-id") or request.query_params.get("after"),
            may_watch=lambda: self._may_watch(request),
            render=self._rendered,
            wait=self._timer.sleep,
        )
        return SseResponse(events, left=lambda: log.leave(watcher))

    def _event(
        self, name: str, conversation: str, message_id: Json, text: Json, *, has_files: bool = False
    ) -> MessageEvent:
        if not isinstance(text, str) or not (text.strip() or has_files):
            raise Refused(400, "malformed", "the message has no text")
        if len(text) > LONGEST_MESSAGE:
            raise Refused(413, "too_large", f"the text exceeds {LONGEST_MESSAGE} characters")
        event = MessageEvent(
            text=clean(text),
            source=self._source(name, conversation),
            message_id=_message_id(message_id),
            timestamp=self._clock.now(),
        )
        if event.is_command():
            event.message_type = MessageType.COMMAND
        return event

    def _source(self, name: str, conversation: str) -> SessionSource:
        return SessionSource(
            platform=self.platform,
            chat_id=name,
            user_id=f"web:{name}",
            user_name=name,
            chat_type="dm",
            thread_id=None if conversation == MAIN else conversation,
        )

    def _beat(self) -> None:
        for log in self._logs.values():
            log.beat()

    # What goes out.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a message, or a draft that grows."""
        log, told = self._logs.get(chat_id), metadata or {}
        if log is None:
            return _nobody()
        answers = told.get("answers") or (() if reply_to is None else (reply_to,))
        *ended, answer = log.answer(
            _entry_id(metadata),
            content,
            tuple(map(str, answers)),
            draft=not told.get("final") and (bool(answers) or "draft" in told),
            at=self._clock.now(),
            conversation=_conversation_of(metadata),
            failed="error" in told,
            reasoning=_reasoning(told),
        )
        return await self._told(chat_id, *ended, answer, title=content, read=answer.answers)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text of a message."""
        told = metadata or {}
        fields: dict[str, Any] = {"text": content}
        if reasoning := _reasoning(told):
            fields["reasoning"] = reasoning
        if told.get("final"):
            fields |= {"draft": False, "failed": "error" in told}
        return await self._changed(chat_id, message_id, fields, read=map(str, told.get("answers", ())))

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Remove a message from the page."""
        return await self._changed(
            chat_id, message_id, {"text": "", "reasoning": "", "gone": True, "draft": False}
        )

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show for some seconds that an answer is being written."""
        log = self._logs.get(chat_id)
        if log is not None:
            log.typing(_conversation_of(metadata))

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Show a question with buttons, or the answer to a command with buttons."""
        if chat_id not in self._logs:
            return _nobody()
        told = metadata or {}
        answers = tuple(map(str, told.get("answers", ())))
        ids = (*answers, *map(str, told.get("read", ())))
        entry = Entry(
            entry_id=_entry_id(metadata),
            kind="card",
            text=card.text,
            at=self._clock.now(),
            conversation=_conversation_of(metadata),
            answers=ids,
            buttons=tuple((one.label, one.value) for one in card.buttons),
            asks=not answers,
        )
        return await self._told(chat_id, entry, title=card.text, read=ids)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a card as it stands now."""
        buttons = tuple((one.label, one.value) for one in card.buttons)
        return await self._changed(chat_id, message_id, {"text": card.text, "buttons": buttons})

    async def _told(self, name: str, *entries: Entry, title: str, read: Iterable[str] = ()) -> SendResult:
        """Show entries to a person; `read` holds the ids of the messages that the agent had read before.

        An answer to a message of a conversation that was deleted is not shown.
        """
        conversation, ids = entries[-1].conversation, tuple(read)
        if not ids or (conversation == MAIN and name not in self._without_main):
            await self._open(name, conversation, title)
        elif entries[-1].draft and await self._chats().conversation(name, conversation) is None:
            return SendResult.sent()
        is_shown = await self._show(name, *await self._read_by(name, entries[-1], ids), *entries)
        self._said()
        return SendResult.sent(entries[-1].entry_id if is_shown else None)

    async def _changed(
        self, name: str, entry_id: str, fields: dict[str, Any], read: Iterable[str] = ()
    ) -> SendResult:
        """Show an entry with other fields."""
        found = None if name not in self._logs else await self._entry(name, entry_id)
        if found is None:
            return SendResult.failed(SendErrorKind.NOT_FOUND, "the page no longer shows this")
        entry = replace(found, **fields)
        await self._show(name, *await self._read_by(name, entry, tuple(read)), entry)
        self._said()
        return SendResult.sent(entry_id)

    async def _read_by(self, name: str, entry: Entry, ids: tuple[str, ...]) -> list[Entry]:
        """Return the messages that an agent has read, marked so that nobody can change them."""
        found = [await self._entry(name, message_id) for message_id in ids]
        return [
            replace(one, answered=True)
            for one in found
            if one is not None and not one.answered and one.conversation == entry.conversation
        ]


def _attachment(file: ShownFile) -> Attachment:
    kind = MessageType.of_file(file.media_type)
    return Attachment(kind=kind, ref=file.sha256, mime=file.media_type, name=file.name, size=file.size)


async def _begun(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first piece of a file, which the caller has read, and then the rest."""
    yield first
    async for piece in rest:
        yield piece


def _title(text: str) -> str:
    """Return the first line of a text that is not empty, cut to 60 characters."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    title = one_line(first.strip().lstrip("#>*` ") or first.strip())
    return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1].rstrip()}…"


def _conversation_of(metadata: Metadata | None) -> str:
    """Return the id of the conversation that metadata name."""
    return str((metadata or {}).get("thread_id") or MAIN)


def _reasoning(metadata: Metadata) -> str:
    """Return the reasoning that belongs to an answer or a draft, at most 100,000 characters of it."""
    return storable(str(metadata.get("reasoning") or ""))[:LONGEST_MESSAGE]


def _conversation_id(given: Json) -> str:
    if not isinstance(given, str) or not _CONVERSATION_ID.fullmatch(given):
        raise Refused(400, "malformed", "the id of a conversation must have 4 to 64 letters, digits, - and _")
    return given


def _before(request: Request) -> int | None:
    """Return the position before which the page reads entries; None for the newest entries."""
    given = request.query_params.get("before")
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise Refused(400, "malformed", "`before` must be an integer")
    return int(given)


def _nobody() -> SendResult:
    return SendResult.failed(SendErrorKind.NOT_FOUND, "no person has this chat on the page")


def _entry_id(metadata: Metadata | None) -> str:
    """Return the id of an outgoing entry; the same dedupe key gives the same id."""
    key = (metadata or {}).get("dedupe_key")
    if key is None:
        return f"out-{secrets.token_hex(12)}"
    return f"out-{hashlib.sha256(str(key).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _message_id(told: Json) -> str:
    if not isinstance(told, str) or not _MESSAGE_ID.fullmatch(told):
        raise Refused(400, "malformed", "an id must have 8 to 64 letters, digits, _ and -")
    return told


def _base(request: Request) -> str:
    """Return the page's own path, wherever the routes are mounted."""
    return f"{request.scope.get('root_path', '')}/chat"


def _hidden(session: str) -> str:
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()


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
