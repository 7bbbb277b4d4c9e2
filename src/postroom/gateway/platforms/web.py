"""The chat page: plain HTML, one script and one style sheet, which this server serves.

    page ──▶ POST /chat/messages {id, text, conversation} ──▶ stored ──▶ 202: the page shows "sent"
    page ◀── GET /chat/conversations: the list; GET /chat/conversations/<id>: the newest entries, then older
    page ◀── GET /chat/events: numbered changes; after a lost connection the page gets what it missed

The first person signs in with `token`, which has at least 16 characters.

A person's stable id is `web:<name>`, and the chat is `<name>`. Each conversation is a thread of that chat,
and has its own session. The conversation `main` is the chat itself, with mail and reminders. A browser that
has sent a token gets a signed, HttpOnly, SameSite=Strict cookie. The cookie is valid for twelve hours, also
after a restart of the server. The store keeps the hash of each session that has signed out. A request that
changes something must come from the page itself: it needs the header `X-Postroom: 1`, and its Origin and
Sec-Fetch-Site are checked.

The page generates the id of a message, so a message that is sent twice is stored once. The store keeps all
entries, but no drafts, until the person deletes the conversation. The server renders the Markdown of entries.
"""

import asyncio
import hashlib
import hmac
import html
import json
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from importlib import resources
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from postroom import sse
from postroom.contracts.clock import Clock, Timer, milliseconds
from postroom.contracts.errors import ConfigError, StoreError, TooLarge, UnknownMessage
from postroom.contracts.files import FileContent, detect_media_type, safe_name
from postroom.contracts.messages import Json, storable
from postroom.contracts.records import Record, replace
from postroom.contracts.signing import same_secret
from postroom.contracts.tables import Secret, Table
from postroom.contracts.web_chats import WebEntry
from postroom.gateway.capabilities import NO_LIMIT, ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.drafts import grows_from
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
from postroom.gateway.platforms.options import secret_remedy
from postroom.gateway.platforms.safe_text import clean, one_line
from postroom.gateway.session import Platform, SessionSource
from postroom.gateway.spooling import MAX_FILES, read_head, spooled
from postroom.markdown import AS_WRITTEN, Markdown
from postroom.sse import SseResponse
from postroom.stores.chats.files import FileStore
from postroom.stores.chats.web_chats import WebChats

# The recent entries of one person's conversations, and the open pages that receive their changes.
#
# Each change of an entry has a number. A page states the number of the last change that it has received, and
# gets the later changes. An entry that has changed several times is sent once, in its latest state. The log
# is in memory, and contains the newest entries and the drafts. The store contains all entries except drafts.
# A restart begins a new log, whose name (`epoch`) is part of each number, so the numbers of two logs differ.


MAX_LOGGED: Final = 500
MAX_CHARACTERS: Final = 5_000_000
MAX_WATCHERS: Final = 16
CHARACTERS_A_MS: Final = 32
"""The server waits 1 ms for this many characters of a draft before it sends the draft again.

The server renders the whole draft each time, so it must send a long draft less often.
"""
MAX_WAIT_MS: Final = 1_000
_ALIVE: Final = sse.entry("alive", "{}")
MAIN: Final = "main"
"""The conversation for mail, reminders and notices that belong to no other conversation."""
_EVENT_ID: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")


class ShownFile(Record, frozen=True, kw_only=True):
    """A file that an entry shows. The bytes of the file are in the store."""

    sha256: str
    name: str
    media_type: str
    size: int

    def to_json(self) -> dict[str, Json]:
        """Return the file as JSON data for the page."""
        return {"id": self.sha256, "name": self.name, "type": self.media_type, "size": self.size}


class Entry(Record, frozen=True, kw_only=True):
    """A message, an answer or a question that the page shows."""

    entry_id: str
    kind: str
    """`message` if the person wrote the entry, or `answer` or `card` if it was sent to the person."""
    text: str
    reasoning: str = ""
    """The model's reasoning, if the entry is an answer. The reasoning is not part of the text."""
    at: int
    conversation: str = MAIN
    order: int = 0
    """The position of the entry among the person's entries. A restart of the server does not reset it."""
    version: int = 0
    draft: bool = False
    gone: bool = False
    edited: bool = False
    failed: bool = False
    """Whether the answer reports a failure, so that the page offers a retry."""
    answered: bool = False
    """Whether an agent has started to answer the message, or has asked a question about it."""
    answers: tuple[str, ...] = ()
    note: str = ""
    """The notice that the message is waiting, or "" when an agent has read the message."""
    replaces: str = ""
    """The id of the draft that this answer has replaced, if there was one."""
    buttons: tuple[tuple[str, str], ...] = ()
    asks: bool = True
    """Whether a run waits until a button of the card is pressed. False for the reply to a command."""
    files: tuple[ShownFile, ...] = ()

    @property
    def length(self) -> int:
        """The number of characters of the text and the reasoning together."""
        return len(self.text) + len(self.reasoning)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON data for the page, without HTML."""
        return {
            "id": self.entry_id,
            "conversation": self.conversation,
            "kind": self.kind,
            "text": self.text,
            "reasoning": self.reasoning,
            "at": self.at,
            "order": self.order,
            "draft": self.draft,
            "gone": self.gone,
            "edited": self.edited,
            "failed": self.failed,
            "answered": self.answered,
            "note": self.note,
            "replaces": self.replaces,
            "asks": self.asks,
            "buttons": [{"label": label, "value": value} for label, value in self.buttons],
            "files": [file.to_json() for file in self.files],
        }

    def to_body(self) -> dict[str, Json]:
        """Convert the entry to plain data for storage."""
        body: dict[str, Json] = msgspec.to_builtins(self)
        return body

    @classmethod
    def from_body(cls, body: dict[str, Json]) -> "Entry":
        """Create an entry from the data that `to_body` returned."""
        return replace(msgspec.convert(body, cls), version=0)


class Watcher:
    """One open page."""

    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}
        """The events without a number that the page has not received yet. Each event is contained once."""
        self.ended = False
        self.news = asyncio.Event()


class ChatLog:
    """The chat entries of one person, and the open pages that show the entries."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._version = 0
        self.newest_order = 0
        """The highest position of this person's entries in the log and in the store."""
        self._forgotten = 0
        """The highest number of the entries that the log has removed, because it was full."""
        self._characters = 0
        self._watchers: set[Watcher] = set()

    # Entries.

    @property
    def number(self) -> str:
        """The number of the newest change of the log."""
        return f"{self._epoch}-{self._version}"

    def find(self, entry_id: str) -> Entry | None:
        """Return the entry with this id, or None if the log does not contain the entry."""
        return self._entries.get(entry_id)

    def drafts(self, conversation: str) -> list[Entry]:
        """Return the drafts of a conversation."""
        return [
            entry for entry in self._entries.values() if entry.draft and entry.conversation == conversation
        ]

    def has_answer(self, message_id: str) -> bool:
        """Return whether the log contains an answer to a message."""
        return any(message_id in entry.answers for entry in self._entries.values())

    def file(self, sha256: str) -> ShownFile | None:
        """Return a file that an entry in the log shows, or None if no entry shows the file."""
        shown = (file for entry in self._entries.values() for file in entry.files)
        return next((file for file in shown if file.sha256 == sha256), None)

    def next_order(self, at: int) -> int:
        """Reserve and return the position of a new entry."""
        self.newest_order = max(self.newest_order + 1, at)
        return self.newest_order

    def assign_position(self, entry: Entry) -> Entry:
        """Return an entry with a new position, or with the position of the entry that it replaces."""
        known_entry = self._entries.get(entry.entry_id) or self._entries.get(entry.replaces)
        if known_entry is not None:
            return replace(entry, order=known_entry.order)
        return entry if entry.order else replace(entry, order=self.next_order(entry.at))

    def put(self, entry: Entry) -> None:
        """Show an entry on all open pages.

        The entry replaces an entry with an equal id. A complete answer replaces its draft.
        """
        self._version += 1
        entry = self.assign_position(entry)
        if (draft := self._entries.pop(entry.replaces, None)) is not None:
            self._characters -= draft.length
        old = self._entries.get(entry.entry_id)
        self._entries[entry.entry_id] = replace(entry, version=self._version)
        self._characters += entry.length - (0 if old is None else old.length)
        while len(self._entries) > MAX_LOGGED or (
            self._characters > MAX_CHARACTERS and len(self._entries) > 1
        ):
            _, gone = self._entries.popitem(last=False)
            self._characters -= gone.length
            self._forgotten = max(self._forgotten, gone.version)
        self._wake()

    def forget(self, conversation: str) -> None:
        """Remove the entries of a deleted conversation."""
        for entry_id in [key for key, entry in self._entries.items() if entry.conversation == conversation]:
            self._characters -= self._entries.pop(entry_id).length

    def answer(
        self,
        entry_id: str,
        text: str,
        answers: Iterable[str],
        *,
        draft: bool,
        at: int,
        reasoning: str = "",
        **fields: Any,
    ) -> list[Entry]:
        """Return the entries that change when a part of an answer arrives.

        The answer replaces its draft. An answer without reasoning keeps the reasoning of its draft. The
        caller must show the returned entries.
        """
        answered = tuple(answers)
        drafts = [
            entry for entry in self._entries.values() if entry.draft and set(entry.answers) & set(answered)
        ]
        grown = drafts[-1] if drafts and grows_from(drafts[-1].text, text) else None
        ended = [replace(entry, draft=False) for entry in drafts if not draft and entry is not grown]
        entry = Entry(
            entry_id=grown.entry_id if draft and grown is not None else entry_id,
            kind="answer",
            text=text,
            reasoning=reasoning or ("" if grown is None else grown.reasoning),
            at=at,
            draft=draft,
            answers=answered,
            replaces="" if draft or grown is None else grown.entry_id,
            **fields,
        )
        return [*ended, entry]

    # Open pages.

    def typing(self, conversation: str) -> None:
        """Show a typing indicator in a conversation on all open pages."""
        self._tell(sse.entry("typing", json.dumps({"conversation": conversation})))

    def list_anew(self) -> None:
        """Make all open pages reload the list of conversations."""
        self._tell(sse.entry("conversations", "{}"))

    def beat(self) -> None:
        """Send a heartbeat to each open page. A page whose session has ended is disconnected."""
        self._tell(_ALIVE)

    def end(self) -> None:
        """Disconnect all open pages."""
        for watcher in self._watchers:
            watcher.ended = True
        self._wake()

    def watch(self) -> Watcher:
        """Register an open page that receives events.

        Raises:
            Refused: Too many pages are open.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise Refused(
                429,
                "too_many_pages",
                f"{MAX_WATCHERS} chat pages are already open, the maximum",
                retry_after=10,
            )
        watcher = Watcher()
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Disconnect a page. A second call has no effect."""
        self._watchers.discard(watcher)

    async def events(
        self,
        watcher: Watcher,
        last_id: str | None,
        *,
        may_watch: Callable[[], Awaitable[bool]],
        render: Callable[[Sequence[Entry]], Awaitable[list[dict[str, Any]]]],
        wait: Callable[[int], Awaitable[None]],
    ) -> AsyncGenerator[str]:
        """Yield the changes since `last_id`, then each change as it happens, until the session ends.

        `may_watch` returns whether the session is still valid. `render` converts entries to JSON data for the
        page. `wait` sleeps for a number of milliseconds.
        """
        seen, is_whole = self._seen(last_id)
        if not is_whole:
            yield sse.entry("reset", "{}")
        while not watcher.ended:
            watcher.news.clear()
            others, watcher.waiting = watcher.waiting, {}
            if _ALIVE in others and not await may_watch():
                return
            changed = [entry for entry in self._entries.values() if entry.version > seen]
            changed.sort(key=lambda one: one.version)
            for entry, fields in zip(changed, await render(changed), strict=True):
                seen = entry.version
                yield sse.entry("entry", json.dumps(fields), number=f"{self._epoch}-{seen}")
            for event in others:
                yield event
            drawn = sum(entry.length for entry in changed if entry.draft)
            if pause := min(drawn // CHARACTERS_A_MS, MAX_WAIT_MS):
                await wait(pause)
            await watcher.news.wait()

    def _seen(self, last_id: str | None) -> tuple[int, bool]:
        """Return the last number that a page has seen, and whether the log contains all later changes."""
        if last_id is None:
            return 0, True
        match = _EVENT_ID.fullmatch(last_id)
        if match is None or match[1] != self._epoch or int(match[2]) > self._version:
            return 0, False
        seen = int(match[2])
        return (seen, True) if seen >= self._forgotten else (0, False)

    def _tell(self, event: str) -> None:
        for watcher in self._watchers:
            watcher.waiting[event] = None
        self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.news.set()


# The sign-in to the chat page, and the files of the page. The files contain no text of chats.
#
# Each token belongs to a person. The cookie of a session is signed with a key that is derived from the token,
# so every server recognises the session, also after a restart. A session ends after twelve hours, when the
# token changes, or when the person signs out.


POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Do not send `no-referrer`: with it, browsers send `Origin: null` with the page's own forms, and the
    # server refuses this.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_KINDS: Final = {
    "chat.css": "text/css; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_FORM: Final = "application/x-www-form-urlencoded"


def _read(name: str) -> bytes:
    return (resources.files("postroom.gateway.platforms") / "web_static").joinpath(name).read_bytes()


_FILES: Final = {name: _read(name) for name in _KINDS}
_TAGS: Final = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in _FILES.items()}
_CHAT: Final = _read("chat.html").decode()
_SIGN_IN: Final = _read("sign_in.html").decode()


async def static_file(request: Request) -> Response:
    """Return the script or the style sheet of the chat page."""
    name = request.path_params["name"]
    if name not in _FILES:
        raise Refused(404, "not_found", "there is no such page file")
    headers = {**_HEADERS, "Cache-Control": "no-cache", "ETag": _TAGS[name]}
    if request.headers.get("if-none-match") == _TAGS[name]:
        return Response(status_code=304, headers=headers)
    return Response(_FILES[name], media_type=_KINDS[name], headers=headers)


def chat_page(title: str, base: str, name: str) -> Response:
    """Return the chat page for a signed-in person."""
    return HTMLResponse(_fill_page(_CHAT, title=title, base=base, name=name), headers=_HEADERS)


def sign_in_page(title: str, base: str, refusal: Refused | None = None) -> Response:
    """Return the sign-in form, with the reason for a refused sign-in."""
    notice = "" if refusal is None else refusal.message
    page = _fill_page(_SIGN_IN, title=title, base=base, notice=notice)
    if refusal is None:
        return HTMLResponse(page, headers=_HEADERS)
    return HTMLResponse(page, status_code=refusal.status, headers={**_HEADERS, **refusal.headers})


def token_in_form(request: Request, body: bytes) -> str:
    """Return the token from a submitted form.

    Raises:
        Refused: The request is not a form.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Refused(415, "unsupported_media_type", "the log-in must be sent with the form on this page")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
    except ValueError as error:
        raise Refused(400, "malformed", "the form cannot be read") from error
    return fields.get("token", [""])[0].strip()


def _fill_page(page: str, **values: str) -> str:
    """Insert values into the placeholders of a page."""
    parts = page.split("{{")
    done = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}}")
        done += (html.escape(values[name]), rest)
    return "".join(done)


SESSION_LIFE: Final = timedelta(hours=12)
MAX_FAILURES: Final = 10
FAILURE_WINDOW: Final = timedelta(minutes=1)
MIN_TOKEN_LENGTH: Final = 16
_MAX_ADDRESSES: Final = 1_024
_SESSION: Final = re.compile(r"([0-9]{13,15})\.[A-Za-z0-9_-]{22}")
"""Matches the payload of a cookie, which contains the end of the session and 16 random bytes."""


def read_people(token: str | None, name: str, others: Mapping[str, str]) -> dict[str, str]:
    """Return the token of each person who may chat, keyed by name.

    Raises:
        ConfigError: A name or token is invalid or used twice, or nobody has a token.
    """
    people = [*([] if token is None else [(name, token)]), *others.items()]
    if not people:
        raise ConfigError(
            "the web channel has no token",
            value="token",
            remedy=secret_remedy("token", f"at least {MIN_TOKEN_LENGTH} random characters"),
        )
    for known_value, secret in people:
        if not 1 <= len(known_value) <= 64 or not known_value.isprintable():
            raise ConfigError(
                "a name in `people` of the web channel is invalid",
                remedy="use one line of 1 to 64 characters",
            )
        if len(secret) < MIN_TOKEN_LENGTH:
            raise ConfigError(
                f"the token of {known_value!r} in `people` of the web channel is too short",
                value=known_value,
                remedy=secret_remedy("token", f"at least {MIN_TOKEN_LENGTH} random characters"),
            )
    if len({known_value for known_value, _ in people}) < len(people) or len(
        {value for _, value in people}
    ) < len(people):
        raise ConfigError(
            "two entries in `people` of the web channel have the same name or token",
            remedy="give each person a different name and token",
        )
    return dict(people)


class Visitors:
    """Signs people in, and recognises them by their cookies."""

    def __init__(self, people: Mapping[str, str], clock: Clock) -> None:
        self._people = people
        self._clock = clock
        self._failures: OrderedDict[str, deque[int]] = OrderedDict()

    def sign_in(self, token: str, address: str) -> str:
        """Start a session for the person with this token, and return the session cookie.

        Raises:
            Refused: Nobody has this token, or ten attempts from this address failed within a minute.
        """
        failures = self._failures.get(address, deque())
        if len(failures) < MAX_FAILURES:
            wait = 0
        else:
            left = failures[0] + milliseconds(FAILURE_WINDOW) - self._clock.now()
            wait = max(0, -(-left // 1000))
        if wait:
            raise Refused(429, "wait", f"Too many attempts. Try again in {wait} seconds.", retry_after=wait)
        # Compare all tokens, so that the time reveals nothing about similar tokens.
        texts = [name for name, known_value in self._people.items() if same_secret(token, known_value)]
        if not texts:
            self._failures.setdefault(address, deque(maxlen=MAX_FAILURES)).append(self._clock.now())
            self._failures.move_to_end(address)
            while len(self._failures) > _MAX_ADDRESSES:
                self._failures.popitem(last=False)
            raise Refused(401, "wrong_token", "Unknown token.")
        payload = f"{self._clock.now() + milliseconds(SESSION_LIFE)}.{secrets.token_urlsafe(16)}"
        return f"{payload}.{self._signature(texts[0], payload)}"

    def who(self, session: str | None) -> str | None:
        """Return the person to whom a session cookie belongs, or None for an invalid or expired cookie.

        The caller must check in the store whether the person has signed out.
        """
        payload, _, signed = (session or "").rpartition(".")
        match = _SESSION.fullmatch(payload)
        if match is None or int(match[1]) <= self._clock.now():
            return None
        return next(
            (name for name in self._people if same_secret(signed, self._signature(name, payload))), None
        )

    def _signature(self, name: str, payload: str) -> str:
        token = self._people[name].encode("utf-8", "surrogatepass")
        key = hmac.digest(token, f"chat page session of {name}".encode("utf-8", "surrogatepass"), "sha256")
        return hmac.digest(key, payload.encode(), "sha256").hex()


def require_own_page(request: Request, *, is_form: bool = False) -> None:
    """Check that a request comes from the chat page and not from another site.

    Raises:
        Refused: The request is from another page.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    foreign = Refused(403, "foreign_page", "the request did not come from a chat page of this server")
    if request.headers.get("x-postroom") != "1" and not (is_form and (site or origin)):
        raise foreign
    if site not in (None, "same-origin"):
        raise foreign
    host = request.headers.get("host", "")
    try:
        is_own = origin is None or (bool(host) and urlsplit(origin).netloc.lower() == host.lower())
    except ValueError:
        is_own = False
    if not is_own:
        raise foreign


LARGEST_JSON: Final = 1024 * 1024
LARGEST_FORM: Final = 8 * 1024
MAX_MESSAGE_LENGTH: Final = 100_000
MAX_UPLOADED: Final = 100
LARGEST_BODY: Final = 20_000_000
MAX_ENTRIES: Final = 40
"""The number of entries that the page loads at once."""
MAX_CONVERSATIONS: Final = 50
"""The number of conversations that the page loads at once."""
MAX_TITLE_LENGTH: Final = 60
_UPLOAD_SECONDS: Final = 600
_SHOWN_INLINE: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_-]{8,64}")
_CONVERSATION_ID: Final = re.compile(r"[A-Za-z0-9_-]{4,64}")
_VALUE: Final = re.compile(r"[\x20-\x7e]{1,60}")


class WebPerson(Table, frozen=True, kw_only=True):
    """An additional person, from the table `[platforms.web.people.<name>]`."""

    token: Secret = Secret()


class WebOptions(PlatformConfig, frozen=True, kw_only=True):
    """The settings in the table `[platforms.web]`."""

    name: str = "owner"
    """The name of the person who signs in with `token`."""
    people: Mapping[str, WebPerson] = {}
    """The other people, keyed by name. Each person has separate conversations."""
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
        # The interval only limits how often an open page is updated.
        limit=NO_LIMIT,
        edits=True,
        streams=True,
        reasoning=True,
        typing=True,
        dedupes=True,
        media=FILES,
        min_edit_interval_ms=100,
    )

    def __init__(self, config: WebOptions, *, clock: Clock | None = None, timer: Timer | None = None) -> None:
        super().__init__(config, clock=clock, timer=timer)
        people = read_people(
            config.token, config.name, {name: person.token for name, person in config.people.items()}
        )
        self._title = config.title
        self._visitors = Visitors(people, self._clock)
        epoch = secrets.token_hex(4)
        self._logs = {name: ChatLog(epoch) for name in people}
        self._uploaded: dict[str, OrderedDict[str, ShownFile]] = {name: OrderedDict() for name in people}
        """For each person, the newest uploaded files that are not part of a message yet."""
        self._early_notes: dict[tuple[str, str], str] = {}
        """By person and message id: the notices, or "", of messages that are accepted but not shown yet."""
        self._without_main: set[str] = set()
        """The people who have deleted the conversation `main` in this process, and have not used it since."""
        self._markdown = Markdown(headings=AS_WRITTEN)

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes of the chat page and of its script."""
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
        """Accept no more requests, and disconnect the open pages."""
        await super().disconnect()
        for log in self._logs.values():
            log.end()

    # The page, and the people who open it.

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
            # the session ends at this time or earlier
            ends_at = self._clock.now() + milliseconds(SESSION_LIFE)
            await self._chats().end_session(_hidden(session), ends_at=ends_at)
            self._logs[name].beat()
        return _with_session(request, "", 0)

    async def _person(self, request: Request) -> str | None:
        """Return the person who is signed in with this browser, or None if nobody is signed in.

        Raises:
            StoreError: It could not be read whether the person has signed out.
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
            return False  # the page then reconnects and gets the reason

    async def _who(self, request: Request) -> str:
        name = await self._person(request)
        if name is None:
            raise Refused(401, "signed_out", "sign in first")
        self._heard()
        return name

    async def _read(self, request: Request) -> tuple[str, dict[str, Json]]:
        """Return the sender and the content of a request."""
        require_own_page(request)
        name = await self._who(request)
        require_json(request)
        return name, parse_object(await read_body(request, LARGEST_JSON))

    # Conversations.

    async def _list(self, request: Request) -> Response:
        """Return up to 50 conversations, the most recently active conversation first."""
        name = await self._who(request)
        conversations = await self._chats().conversations(
            name, before=_before(request), limit=MAX_CONVERSATIONS + 1
        )
        shown = [
            {"id": conversation.conversation_id, "title": conversation.title, "at": conversation.active_at}
            for conversation in conversations[:MAX_CONVERSATIONS]
        ]
        return json_response({"conversations": shown, "more": len(conversations) > MAX_CONVERSATIONS})

    async def _conversation(self, request: Request) -> Response:
        """Return up to 40 entries of a conversation, and the number of the newest change."""
        name, before = await self._who(request), _before(request)
        conversation = _conversation_id(request.path_params["id"])
        log = self._logs[name]
        number = log.number
        web_entries = await self._chats().entries(name, conversation, before=before, limit=MAX_ENTRIES + 1)
        stored = (Entry.from_body(entry.body) for entry in web_entries[:MAX_ENTRIES])
        entries = [log.find(entry.entry_id) or entry for entry in stored]
        if before is None:
            entries += log.drafts(conversation)
        shown = await self._render(sorted(entries, key=lambda one: one.order))
        return json_response({"entries": shown, "more": len(web_entries) > MAX_ENTRIES, "event": number})

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
        """Delete a conversation, and stop its active runs."""
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
        """Stop the active run of a conversation."""
        name, _ = await self._read(request)
        source = self._source(name, _conversation_id(request.path_params["id"]))
        note = await self._receiver().pressed(ButtonPress(source=source, value="stop"))
        return json_response({"note": note})

    def _chats(self) -> WebChats:
        if self.web_chats is None:
            raise Refused(503, "unavailable", "conversations cannot be read at the moment", retry_after=2)
        return self.web_chats

    async def _entry(self, name: str, entry_id: str) -> Entry | None:
        """Return the current state of an entry, from the log or from the store."""
        if (entry := self._logs[name].find(entry_id)) is not None:
            return entry
        stored = await self._chats().entry(name, entry_id)
        return None if stored is None else Entry.from_body(stored.body)

    async def _log(self, name: str) -> ChatLog:
        """Return the chat log of a person."""
        log = self._logs[name]
        if not log.newest_order:
            newest = await self._chats().conversations(name, limit=1)
            log.newest_order = max(log.newest_order, newest[0].active_at if newest else 0)
        return log

    async def _show(self, name: str, *entries: Entry) -> bool:
        """Store and show entries of one conversation. Drafts are shown but not stored.

        Return False if the conversation was deleted.

        Raises:
            StoreError: The entries could not be stored. Nothing is shown.
        """
        log = await self._log(name)
        placed = [log.assign_position(replace(entry, text=storable(entry.text))) for entry in entries]
        stored = [
            WebEntry(
                person=name,
                conversation_id=entry.conversation,
                entry_id=entry.entry_id,
                position=entry.order,
                body=entry.to_body(),
            )
            for entry in placed
            if not entry.draft
        ]
        if stored and not await self._chats().put(stored):
            return False
        for entry in placed:
            log.put(entry)
        return True

    async def _render(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Convert entries to JSON data for the page, with the texts as safe HTML."""
        bodies = await self._markdown.render({place: entry.text for place, entry in enumerate(entries)})
        return [{**entry.to_json(), "html": str(bodies[place].html)} for place, entry in enumerate(entries)]

    # Incoming messages and files.

    async def _take(self, request: Request) -> Response:
        name, data = await self._read(request)
        conversation = _conversation_id(data.get("conversation", MAIN))
        # Find the files of a message. A file has just been uploaded, or this chat already shows it.
        ids = data.get("files", [])
        if (
            not isinstance(ids, list)
            or len(ids) > MAX_FILES
            or not all(isinstance(item, str) for item in ids)
        ):
            raise Refused(400, "malformed", f"`files` must be a list of at most {MAX_FILES} ids")
        known_shown_files = [await self._find_file(name, item) for item in ids]
        if None in known_shown_files:
            raise Refused(
                400, "unknown_file", "a file of this message is no longer stored; choose the file again"
            )
        files = tuple(file for file in known_shown_files if file is not None)
        event = self._event(name, conversation, data.get("id"), data.get("text"), has_files=bool(files))
        event.media = tuple(map(_attachment, files))
        message_id, log = str(event.message_id), await self._log(name)
        is_new = await self._entry(name, message_id) is None
        # the message must be shown above its answer, even if the answer arrives at once
        order = log.next_order(self._clock.now())
        if is_new:
            if conversation == MAIN:
                self._without_main.discard(name)
            await self._open(name, conversation, event.text or files[0].name)
        early = name, message_id
        if is_new:
            self._early_notes[early] = ""
        try:
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
        finally:
            note = self._early_notes.pop(early, "")
        if is_new and not entry.answered and log.has_answer(message_id):
            await self._show(name, *await self._read_by(name, entry, (message_id,)))
        elif note:
            await self._note(name, message_id, note)
        if event.get_command() == "title" and event.get_command_args():
            await self._chats().rename(name, conversation, _title(event.get_command_args()))
            log.list_anew()
        return json_response({"id": message_id, "state": "kept"}, 202)

    async def _open(self, name: str, conversation: str, text: str) -> None:
        """Create a conversation, if it does not exist, with the first line of a text as the title."""
        if await self._chats().conversation(name, conversation) is None:
            await self._chats().open(name, conversation, title=_title(text) or "Untitled")
            self._logs[name].list_anew()

    async def _upload(self, request: Request) -> Response:
        require_own_page(request)
        name = await self._who(request)
        param = request.query_params.get("name", "")
        most = LARGEST_BODY
        try:
            async with asyncio.timeout(_UPLOAD_SECONDS), spooled(request.stream(), most=most) as spooled_file:
                head = await asyncio.to_thread(read_head, spooled_file.path)
                media_type = detect_media_type(head, param)
                await self._store().put_bytes(spooled_file)
        except TooLarge as error:
            raise Refused(413, "too_large", error.message) from error
        except TimeoutError as error:
            raise Refused(408, "too_slow", "the file was not uploaded in time") from error
        file = ShownFile(
            sha256=spooled_file.sha256,
            name=safe_name(param, media_type, 1),
            media_type=media_type,
            size=spooled_file.size,
        )
        uploaded = self._uploaded[name]
        uploaded[file.sha256] = file
        while len(uploaded) > MAX_UPLOADED:
            uploaded.popitem(last=False)
        return json_response(file.to_json(), 201)

    async def _file(self, request: Request) -> Response:
        """Return a file from the person's chat."""
        name, sha256 = await self._who(request), request.path_params["sha256"]
        file = await self._find_file(name, sha256, request.query_params.get("entry"))
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
        return StreamingResponse(_rejoin_pieces(first, pieces), media_type=media_type, headers=headers)

    async def _find_file(self, name: str, sha256: str, entry_id: str | None = None) -> ShownFile | None:
        """Return a file that the person has uploaded or that an entry shows."""
        shown_file = self._uploaded[name].get(sha256) or self._logs[name].file(sha256)
        if shown_file is None and entry_id is not None:
            entry = await self._entry(name, entry_id)
            files = () if entry is None else entry.files
            shown_file = next((file for file in files if file.sha256 == sha256), None)
        return shown_file

    def _store(self) -> FileStore:
        if self.files is None:
            raise Refused(503, "unavailable", "files are not accepted at the moment", retry_after=2)
        return self.files

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield an uploaded file from the store."""
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"the file exceeds {max_bytes:,} bytes", value=attachment.size)
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
        """Show a stored file on the page."""
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
            conversation=_read_conversation_id(metadata),
            files=(file,),
        )
        return await self._show_entries(chat_id, entry, title=file.name)

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
            await self._show(name, replace(shown, text="", files=(), note="", gone=True))
        return json_response({"id": message_id, "state": "gone"})

    async def _press(self, request: Request) -> Response:
        name, data = await self._read(request)
        value, card_id = data.get("value"), _message_id(data.get("message_id"))
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise Refused(400, "malformed", "`value` does not belong to a button of this message")
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
            render=self._render,
            wait=self._timer.sleep,
        )
        return SseResponse(events, left=lambda: log.leave(watcher))

    def _event(
        self, name: str, conversation: str, message_id: Json, text: Json, *, has_files: bool = False
    ) -> MessageEvent:
        if not isinstance(text, str) or not (text.strip() or has_files):
            raise Refused(400, "malformed", "the message has no text")
        if len(text) > MAX_MESSAGE_LENGTH:
            raise Refused(413, "too_large", f"the text exceeds {MAX_MESSAGE_LENGTH} characters")
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

    # Outgoing entries.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a message, or a growing draft."""
        log, fields = self._logs.get(chat_id), metadata or {}
        if log is None:
            return _nobody()
        if (waiting := fields.get("waits_for")) is not None:
            return await self._note(chat_id, str(waiting), content)
        answers = fields.get("answers") or (() if reply_to is None else (reply_to,))
        *ended, answer = log.answer(
            _entry_id(metadata),
            content,
            tuple(map(str, answers)),
            draft=not fields.get("final") and (bool(answers) or "draft" in fields),
            at=self._clock.now(),
            conversation=_read_conversation_id(metadata),
            failed="error" in fields,
            reasoning=_reasoning(fields),
        )
        return await self._show_entries(chat_id, *ended, answer, title=content, read=answer.answers)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text of a message, or replace a draft by the complete answer."""
        options = metadata or {}
        fields: dict[str, Any] = {"text": content}
        if reasoning := _reasoning(options):
            fields["reasoning"] = reasoning
        if options.get("final"):
            fields |= {"draft": False, "failed": "error" in options}
            if "dedupe_key" in options:
                fields |= {"entry_id": _entry_id(options), "replaces": message_id}
        return await self._change_entry(
            chat_id, message_id, fields, read=map(str, options.get("answers", ()))
        )

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Remove a message from the page."""
        return await self._change_entry(
            chat_id, message_id, {"text": "", "reasoning": "", "gone": True, "draft": False}
        )

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show a typing indicator on the page for a few seconds."""
        log = self._logs.get(chat_id)
        if log is not None:
            log.typing(_read_conversation_id(metadata))
            # after a restart, a run may continue before the channel is connected
            read = () if self.web_chats is None else (metadata or {}).get("answers", ())
            for message_id in read:
                await self._note(chat_id, str(message_id), "")

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Show a question or the reply to a command, with buttons."""
        if chat_id not in self._logs:
            return _nobody()
        fields = metadata or {}
        answers = tuple(map(str, fields.get("answers", ())))
        ids = (*answers, *map(str, fields.get("read", ())))
        entry = Entry(
            entry_id=_entry_id(metadata),
            kind="card",
            text=card.text,
            at=self._clock.now(),
            conversation=_read_conversation_id(metadata),
            answers=ids,
            buttons=tuple((button.label, button.value) for button in card.buttons),
            asks=not answers,
        )
        return await self._show_entries(chat_id, entry, title=card.text, read=ids)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text and the buttons of a card."""
        buttons = tuple((button.label, button.value) for button in card.buttons)
        return await self._change_entry(chat_id, message_id, {"text": card.text, "buttons": buttons})

    async def _note(self, name: str, message_id: str, note: str) -> SendResult:
        """Show a notice at a message that no agent has read, or remove the notice."""
        if (name, message_id) in self._early_notes:
            self._early_notes[name, message_id] = note
        else:
            entry = await self._entry(name, message_id)
            if entry is not None and entry.note != note and not (entry.answered or entry.gone):
                await self._show(name, replace(entry, note=note))
        self._said()
        return SendResult.sent()

    async def _show_entries(
        self, name: str, *entries: Entry, title: str, read: Iterable[str] = ()
    ) -> SendResult:
        """Show entries to a person. `read` contains the ids of the messages that the agent has read."""
        conversation, ids = entries[-1].conversation, tuple(read)
        if not entries[-1].draft and await self._entry(name, entries[-1].entry_id) is not None:
            return SendResult.sent(entries[-1].entry_id)
        if not ids or (conversation == MAIN and name not in self._without_main):
            await self._open(name, conversation, title)
        elif entries[-1].draft and await self._chats().conversation(name, conversation) is None:
            return SendResult.sent()
        is_shown = await self._show(name, *await self._read_by(name, entries[-1], ids), *entries)
        self._said()
        return SendResult.sent(entries[-1].entry_id if is_shown else None)

    async def _change_entry(
        self, name: str, entry_id: str, fields: dict[str, Any], read: Iterable[str] = ()
    ) -> SendResult:
        """Change fields of an entry, and show the entry."""
        value = None if name not in self._logs else await self._entry(name, entry_id)
        if value is None:
            return SendResult.failed(SendErrorKind.NOT_FOUND, "the chat page no longer shows this message")
        entry = replace(value, **fields)
        await self._show(name, *await self._read_by(name, entry, tuple(read)), entry)
        self._said()
        return SendResult.sent(entry.entry_id)

    async def _read_by(self, name: str, entry: Entry, ids: tuple[str, ...]) -> list[Entry]:
        """Mark the messages that an agent has read, and return the changed entries."""
        entries = [await self._entry(name, message_id) for message_id in ids]
        return [
            replace(item, answered=True, note="")
            for item in entries
            if item is not None and not item.answered and item.conversation == entry.conversation
        ]


def _attachment(file: ShownFile) -> Attachment:
    kind = MessageType.of_file(file.media_type)
    return Attachment(kind=kind, ref=file.sha256, mime=file.media_type, name=file.name, size=file.size)


async def _rejoin_pieces(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first piece of a file, followed by the remaining pieces."""
    yield first
    async for piece in rest:
        yield piece


def _title(text: str) -> str:
    """Return the first non-empty line of a text, cut to 60 characters."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    title = one_line(first.strip().lstrip("#>*` ") or first.strip())
    return title if len(title) <= MAX_TITLE_LENGTH else f"{title[: MAX_TITLE_LENGTH - 1].rstrip()}…"


def _read_conversation_id(metadata: Metadata | None) -> str:
    """Return the id of the conversation in the metadata."""
    return str((metadata or {}).get("thread_id") or MAIN)


def _reasoning(metadata: Metadata) -> str:
    """Return the reasoning of an answer or a draft, cut to 100,000 characters."""
    return storable(str(metadata.get("reasoning") or ""))[:MAX_MESSAGE_LENGTH]


def _conversation_id(given: Json) -> str:
    if not isinstance(given, str) or not _CONVERSATION_ID.fullmatch(given):
        raise Refused(400, "malformed", "the id of a conversation must have 4 to 64 letters, digits, - and _")
    return given


def _before(request: Request) -> int | None:
    """Return the position before which the page reads entries, or None for the newest entries."""
    given_param = request.query_params.get("before")
    if given_param is None:
        return None
    if not (given_param.isascii() and given_param.isdigit() and len(given_param) <= 18):
        raise Refused(400, "malformed", "`before` must be an integer")
    return int(given_param)


def _nobody() -> SendResult:
    return SendResult.failed(SendErrorKind.NOT_FOUND, "no person has this chat on the chat page")


def _entry_id(metadata: Metadata | None) -> str:
    """Return the id of an outgoing entry. Equal dedupe keys have equal ids."""
    key = (metadata or {}).get("dedupe_key")
    if key is None:
        return f"out-{secrets.token_hex(12)}"
    return f"out-{hashlib.sha256(str(key).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _message_id(told: Json) -> str:
    if not isinstance(told, str) or not _MESSAGE_ID.fullmatch(told):
        raise Refused(400, "malformed", "an id must have 8 to 64 letters, digits, _ and -")
    return told


def _base(request: Request) -> str:
    """Return the path of the chat page, including the mount point of the routes."""
    return f"{request.scope.get('root_path', '')}/chat"


def _hidden(session: str) -> str:
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()


def _cookie_name(request: Request) -> str:
    """Return the name of the session cookie, which contains the port of the server."""
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
