"""A Zulip channel for postroom. One bot uses Zulip's event queue and its REST API.

    register a queue ─▶ GET events(last_event_id) ─▶ each event in turn: stored ─▶ last_event_id moves on

A request for the events after an id acknowledges all events up to that id. The adapter therefore sends the id
of an event only when the event is stored. Zulip deletes a queue after 10 minutes without a request. The
adapter then registers a new queue, and reads the messages that are newer than the newest stored one.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import httpx2
import msgspec

from postroom.contracts.errors import CredentialRefused, InvalidArgument, ServerUnavailable
from postroom.gateway.platforms.base import (
    AdapterState,
    BasePlatformAdapter,
    ChannelCapabilities,
    MessageEvent,
    Metadata,
    Platform,
    PlatformConfig,
    Rate,
    RateLimits,
    SendErrorKind,
    SendResult,
    SessionSource,
    refuse_address,
    secret_remedy,
)

T = TypeVar("T")
ZULIP = Platform("zulip")
PAGE = 1_000
"""The number of missed messages that one request returns. Zulip allows 5,000."""
_SENT_BY = "the api_key of the bot, from its zuliprc file"


class ZulipOptions(PlatformConfig, frozen=True, kw_only=True):
    """The settings in the table [platforms.zulip]. The token is the bot's API key."""

    site: str
    """The address of the Zulip server, such as https://chat.example.org."""
    email: str
    """The bot's e-mail address, from its zuliprc file."""
    poll_seconds: Annotated[int, msgspec.Meta(ge=1, le=600)] = 90
    """The longest wait of one request for an event. Zulip answers after about a minute in any case."""

    def __post_init__(self) -> None:
        refuse_address("site", self.site)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message in Zulip's format."""

    id: int
    sender_id: int
    type: str
    content: str
    display_recipient: str | list[dict[str, Any]]
    """The name of the channel, or the members of a direct conversation."""
    sender_full_name: str = ""
    stream_id: int | None = None
    subject: str = ""
    """The topic, in Zulip's old name for it."""
    timestamp: int = 0
    flags: list[str] = []


class MessageAdded(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a new message."""

    message: Message
    flags: list[str] = []


class MessageChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a changed message."""

    message_id: int
    content: str | None = None
    """The new text, or None if the text is unchanged."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The server's answer, or the reason why no answer came."""

    status: int = 0
    """The HTTP status, or 0 if no answer came."""
    body: dict[str, Any] = {}
    error: str = ""
    kind: SendErrorKind | None = None
    """The kind of the failure, or None after a success."""

    @property
    def retry_after_ms(self) -> int | None:
        """The wait in milliseconds that the server demands, or None."""
        seconds = self.body.get("retry-after")
        return int(seconds * 1_000) if isinstance(seconds, int | float) else None


class ZulipAdapter(BasePlatformAdapter):
    """One bot on one Zulip server."""

    platform: ClassVar[Platform] = ZULIP
    options: ClassVar = ZulipOptions
    capabilities: ClassVar = ChannelCapabilities(
        limit=10_000,
        edits=True,
        threads=True,
        typing=True,
        reactions=True,
        # zulip.com/api/rest-error-handling: 200 requests a minute.
        rates=RateLimits(bot=Rate(200, 60_000)),
    )

    def __init__(self, config: ZulipOptions, **given: Any) -> None:
        super().__init__(config, **given)
        self._options = config
        self._client: httpx2.AsyncClient | None = None
        self._bot_id, self._mention = 0, ""
        self._queue: str | None = None
        self._last_event = -1
        self._newest: int | None = None
        """The id of the newest stored message of all chats, or None before the first queue."""
        self._has_gap = False
        """Whether messages may have arrived while no queue existed."""

    # Connection.

    @property
    def account(self) -> str:
        """The bot's user id."""
        return str(self._bot_id) if self._bot_id else "default"

    def lock_identity(self) -> str | None:
        """Return the API key. The lock on it prevents two processes from answering with one bot."""
        return self.config.token

    def remember(self, source: SessionSource, message_id: str) -> None:
        """Record a stored message, so that the adapter knows the newest one before it connects."""
        self._newest = max(self._newest or 0, int(message_id))

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Check the API key, register an event queue and start to receive."""
        await self.disconnect()
        self.liveness.state = AdapterState.CONNECTING
        auth = httpx2.BasicAuth(self._options.email, self.config.token or "")
        # Creating a client reads certificates from the disk, which must not block the event loop.
        self._client = await asyncio.to_thread(httpx2.AsyncClient, auth=auth, trust_env=False)
        try:
            me = await self._asked("GET", "users/me")
            self._bot_id, self._mention = int(me["user_id"]), str(me["full_name"])
            await self._register()
        except BaseException:
            await self.disconnect()
            raise
        self._start_receiving(self._look)

    async def disconnect(self) -> None:
        """Stop all tasks and close the HTTP client."""
        await self._end_tasks()
        client, self._client, self._queue = self._client, None, None
        if client is not None:
            await client.aclose()

    # Receiving.

    async def _register(self) -> None:
        told = {"event_types": json.dumps(["message", "update_message"]), "apply_markdown": "false"}
        queue = await self._asked("POST", "register", told)
        self._queue, self._last_event = str(queue["queue_id"]), int(queue["last_event_id"])
        self._has_gap = self._newest is not None
        if self._newest is None:
            self._newest = max(0, int(queue.get("max_message_id", 0)))  # Zulip sends -1 without messages

    async def _look(self, failures: int) -> int:
        """Request events once and process them. Return the pause before the next request."""
        if self._queue is None:
            await self._register()
        if self._has_gap:
            await self._catch_up()
        told = {"queue_id": self._queue, "last_event_id": self._last_event}
        answer = await self._call("GET", "events", told, silence_s=self._options.poll_seconds)
        if answer.body.get("code") == "BAD_EVENT_QUEUE_ID":
            self._queue = None
            return 0
        for event in _checked(answer)["events"]:
            await self.take_in(event, partial(self._take, event))
            self._last_event = max(self._last_event, int(event["id"]))
        return 0

    async def _catch_up(self) -> None:
        """Read the messages that arrived while no queue existed."""
        told = {"num_before": 0, "num_after": PAGE, "include_anchor": "false", "apply_markdown": "false"}
        while self._has_gap:
            found = await self._asked("GET", "messages", {**told, "anchor": self._newest})
            for message in found["messages"]:
                event = {"type": "message", "message": message}
                await self.take_in(event, partial(self._take, event))
                self._newest = max(self._newest or 0, int(message["id"]))  # also of a dead letter
            self._has_gap = len(found["messages"]) == PAGE

    async def _take(self, event: Mapping[str, Any]) -> None:
        """Store one event. The event is stored when the method returns."""
        if event.get("type") == "message":
            told = _converted(event, MessageAdded)
            message = msgspec.structs.replace(told.message, flags=told.flags or told.message.flags)
            if (found := self._read(message)) is not None:
                await self.handle_message(found)
            self._newest = max(self._newest or 0, message.id)
        elif event.get("type") == "update_message":
            changed = _converted(event, MessageChanged)
            if changed.content is None or self._inbound is None:
                return  # the topic was changed, or a preview of a link was added
            answer = await self._asked("GET", f"messages/{changed.message_id}", {"apply_markdown": "false"})
            if (edited := self._read(_converted(answer["message"], Message))) is not None:
                await self._inbound.edited(edited)

    def _read(self, message: Message) -> MessageEvent | None:
        """Return a message as a postroom event, or None if the bot itself sent the message."""
        if message.sender_id == self._bot_id:
            return None
        is_direct = message.type == "private"
        people = [] if isinstance(message.display_recipient, str) else message.display_recipient
        ids = sorted(int(one["id"]) for one in people if int(one["id"]) != self._bot_id)
        is_pair = is_direct and len(ids) <= 1
        source = SessionSource(
            platform=ZULIP,
            chat_id=",".join(map(str, ids)) if is_direct else str(message.stream_id),
            chat_name=None if is_direct else str(message.display_recipient),
            chat_type="dm" if is_pair else "group" if is_direct else "thread",
            user_id=str(message.sender_id),
            user_name=message.sender_full_name or None,
            thread_id=None if is_direct else message.subject,
            chat_topic=None if is_direct else message.subject,
            account=self.account,
        )
        name = re.escape(self._mention)
        return MessageEvent(
            text=re.sub(rf"@_?\*\*{name}(\|\d+)?\*\*[:,]?\s*", "", message.content).strip(),
            source=source,
            message_id=str(message.id),
            timestamp=message.timestamp * 1_000 or None,
            addressed=is_pair or "mentioned" in message.flags,
        )

    # Sending.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message."""
        return await self._say(
            "POST", "messages", {**_to(chat_id, metadata), "content": content}, chat_id, metadata
        )

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text of a message that the bot sent."""
        result = await self._say("PATCH", f"messages/{message_id}", {"content": content}, chat_id, metadata)
        return SendResult.sent(message_id) if result.success else result

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a message that the bot sent, if the server's settings permit it."""
        return await self._say("DELETE", f"messages/{message_id}", {})

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show that an answer is being written."""
        told = _to(chat_id, metadata)
        if told["type"] == "stream":
            told = {"type": "stream", "stream_id": told["to"], "topic": told["topic"]}
        await self._say("POST", "typing", {**told, "op": "start"}, gives_way=True)

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Mark a message with the emoji eyes, or remove the mark."""
        method, told = "DELETE" if takes_back else "POST", {"emoji_name": "eyes"}
        return await self._say(method, f"messages/{message_id}/reactions", told, gives_way=True)

    async def _say(
        self,
        method: str,
        path: str,
        told: Mapping[str, Any],
        chat_id: str | None = None,
        metadata: Metadata | None = None,
        *,
        gives_way: bool = False,
    ) -> SendResult:
        """Make an API call that people see, within the rate limits."""
        async with self._turn(f"{method} {path}", chat_id, metadata, gives_way=gives_way) as turn:
            if turn.wait_ms:
                return SendResult.failed(
                    SendErrorKind.RATE_LIMITED, "the rate limit", retry_after_ms=turn.wait_ms
                )
            answer = await self._call(method, path, told)
            if answer.kind is SendErrorKind.RATE_LIMITED:
                turn.refused(answer.retry_after_ms)
        if answer.kind is not None:
            return SendResult.failed(answer.kind, answer.error, retry_after_ms=answer.retry_after_ms)
        self._said()
        number = answer.body.get("id")
        return SendResult.sent(None if number is None else str(number))

    # HTTP.

    async def _asked(self, method: str, path: str, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return _checked(await self._call(method, path, told or {}))

    async def _call(self, method: str, path: str, told: Mapping[str, Any], *, silence_s: int = 30) -> Answer:
        """Call the REST API. Return a network failure as an answer, too."""
        if self._client is None:
            return Answer(error="Zulip is not connected", kind=SendErrorKind.TRANSIENT)
        url = f"{self._options.site.rstrip('/')}/api/v1/{path}"
        where = {"params": told} if method == "GET" else {"data": told}
        try:
            response = await self._client.request(method, url, timeout=silence_s + 10, **where)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Answer(
                error=f"Zulip cannot be reached: {type(error).__name__}", kind=SendErrorKind.TRANSIENT
            )
        except httpx2.RequestError as error:
            return Answer(
                error=f"Zulip's answer was lost: {type(error).__name__}", kind=SendErrorKind.UNKNOWN
            )
        return _answer(response)


def _converted(told: Any, kind: type[T]) -> T:
    """Convert a part of Zulip's data to a struct.

    Raises:
        InvalidArgument: The data has an unknown format. `take_in` then makes the event a dead letter.
    """
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"an event from Zulip has an unknown format: {error}") from error


def _answer(response: httpx2.Response) -> Answer:
    """Convert a response to an answer. The kind depends only on the HTTP status."""
    status = response.status_code
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return Answer(status=status, error=f"status {status}, no JSON", kind=SendErrorKind.UNKNOWN)
    if status == 200:
        return Answer(status=status, body=body)
    kinds = {
        401: SendErrorKind.FORBIDDEN,
        403: SendErrorKind.FORBIDDEN,
        404: SendErrorKind.NOT_FOUND,
        429: SendErrorKind.RATE_LIMITED,
    }
    kind = kinds.get(status, SendErrorKind.UNKNOWN if status >= 500 else SendErrorKind.BAD_FORMAT)
    return Answer(
        status=status, body=body, error=f"Zulip answered {status}: {body.get('msg', '')}"[:300], kind=kind
    )


def _checked(answer: Answer) -> dict[str, Any]:
    """Return the body of a successful answer.

    Raises:
        CredentialRefused: The key or the e-mail address is wrong.
        ServerUnavailable: The call failed. The adapter repeats it.
    """
    if answer.status in (401, 403):
        raise CredentialRefused(
            "Zulip rejected the e-mail address and the API key", remedy=secret_remedy("token", _SENT_BY)
        )
    if answer.kind is not None:
        details = {"retry_after_ms": answer.retry_after_ms}
        raise ServerUnavailable(answer.error, remedy="check `site`; postroom retries", details=details)
    return answer.body


def _to(chat_id: str, metadata: Metadata | None) -> dict[str, Any]:
    """Return the recipient of a message: a topic in a channel, or people."""
    topic = (metadata or {}).get("thread_id")
    if topic is not None:
        return {"type": "stream", "to": chat_id, "topic": str(topic)}
    return {"type": "direct", "to": json.dumps([int(one) for one in chat_id.split(",")])}
