"""The base class of the adapters of chat platforms, and the protocol of the gateway's inbound side.

    platform ──▶ adapter: a MessageEvent each ──▶ handle_message: stored ──▶ acknowledged to the platform
    platform ◀── adapter: send, edit, card, typing, react ◀── the gateway

An adapter acknowledges a message to its platform only after `handle_message` has returned, because then the
message is on disk. (To acknowledge means to advance an offset, answer 200, or ack an envelope.) If
`handle_message` raises a `StoreError`, the adapter does not acknowledge the message, and the platform sends
it again. Adapters do not depend on sessions, agents or policies.
"""

import asyncio
import json
import random
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import ClassVar, Final, Protocol

from starlette.routing import BaseRoute

from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.clock import Clock, SystemClock, Timer
from postroom.contracts.errors import (
    CredentialRefused,
    InputError,
    InvalidArgument,
    PostroomError,
    ServerUnavailable,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json, storable
from postroom.contracts.tokens import PLATFORM_TOKENS
from postroom.gateway.capabilities import ChannelCapabilities, Rate, RateLimits
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import (
    Attachment,
    Button,
    ButtonPress,
    Card,
    MessageEvent,
    MessageType,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.pacing import Pacing, Turn
from postroom.gateway.platforms.options import refuse_address, secret_remedy
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger
from postroom.stores.chats.files import FileStore
from postroom.stores.chats.web_chats import WebChats

__all__ = [
    "AdapterState",
    "Attachment",
    "BasePlatformAdapter",
    "Button",
    "ButtonPress",
    "Card",
    "ChannelCapabilities",
    "Inbound",
    "MessageEvent",
    "MessageType",
    "Metadata",
    "Platform",
    "PlatformConfig",
    "Rate",
    "RateLimits",
    "SendErrorKind",
    "SendResult",
    "SessionSource",
    "refuse_address",
    "secret_remedy",
]

_LOG = get_logger(__name__)
_LOOK_AGAIN_MS: Final = 1_000
MAX_TRIES: Final = 3
"""The number of attempts at an update that triggers a bug, before it becomes a dead letter."""
MAX_RAW_LENGTH: Final = 200_000
"""Maximum number of characters of a raw update that its dead letter contains."""
_SECRETS: Final = ("token", "response_url", "trigger_id")
"""The fields of raw updates that contain credentials.

With these credentials, a reader of a dead letter could act as a person or as the bot.
"""
_SECRET_IN_TEXT: Final = re.compile(
    rf"""("(?:{"|".join(_SECRETS)})"\s*:\s*"|\b(?:{"|".join(_SECRETS)})=)[^"&]*"""
)
"""Matches a field of `_SECRETS` in an update that is neither a JSON object nor a form."""
_MAX_FAILING: Final = 1_000
_DEFECT: Final = "receive_failed"
"""The error code of a channel that retries an update which triggered a bug."""
_MAX_PAUSE_MS = 60_000
_END_SECONDS: Final = 10.0
TOO_OFTEN = "the platform's rate limit allows this only later"
"""The error text of a message that was not sent because of the rate limit, without calling the platform."""
Metadata = Mapping[str, Json]
"""The details of a sent message, as far as they are known:

| name | meaning |
|---|---|
| thread_id | the id of the platform's thread within the chat |
| dedupe_key | the same for each repetition of the same message |
| answers | the platform's ids of the answered messages |
| read | for a question: the platform's ids of the messages that the asking run has read |
| waits_for | for a notice that is true until an agent begins with a message: the id of that message |
| final | true for the last part of an answer; before it, a draft or an earlier part was shown |
| begins_again | true if another attempt writes the answer again; only for channels that hold requests |
| draft | true for a draft of an answer: all other messages have priority over it |
| error | the reason for a missing answer, without the words of a model's provider |
| code | the code of the error, if it is a `PostroomError` |
| tool_calls | the tools that the caller must call; `text` is then the text with them |
| usage | the tokens of the answer: read, written |
| reasoning | the reasoning of the model, for channels that show it separately |
"""


def send_metadata(source: SessionSource, **more: Json) -> dict[str, Json]:
    """Return the metadata for sending a message to a chat."""
    metadata: dict[str, Json] = {} if source.thread_id is None else {"thread_id": source.thread_id}
    return metadata | more


class Inbound(Protocol):
    """Receives the messages of an adapter."""

    async def accept(self, event: MessageEvent) -> None:
        """Store a message durably. A message that is already stored is ignored.

        Raises:
            StoreError: The message could not be stored. Do not acknowledge it to the platform.
            InputError: The message can never be stored, for instance because it has no message id. Skip it.
        """
        ...

    async def edited(self, event: MessageEvent) -> None:
        """Process an edit that changed the text of a message.

        Raises:
            StoreError: As for `accept`.
        """
        ...

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        """Process the deletion of a message.

        Raises:
            StoreError: As for `accept`.
        """
        ...

    async def moved(self, source: SessionSource, chat_id: str) -> None:
        """Move the sessions of a group to the group's new chat id.

        Raises:
            StoreError: As for `accept`.
        """
        ...

    async def pressed(self, press: ButtonPress) -> str:
        """Process a pressed button and return a short note for the person who pressed it.

        Raises:
            StoreError: As for `accept`.
        """
        ...

    async def look_up(self, source: SessionSource, message_id: str) -> "KnownMessage | None":
        """Return a stored message and its answer, or None for an unknown message.

        Raises:
            StoreError: The message could not be read.
        """
        ...

    async def cards_of(self, source: SessionSource, message_id: str) -> Sequence[Card]:
        """Return the cards of the last questions that the run of an unanswered message asked.

        The first card also contains the agent's text before the questions.

        Raises:
            StoreError: The run could not be read.
        """
        ...

    async def forget_answer(self, source: SessionSource, message_id: str) -> None:
        """Hide the answer to a message from callers that look it up by the message.

        The history of the conversation still contains the answer.

        Raises:
            StoreError: As for `accept`.
        """
        ...

    async def cancel_answer(
        self, source: SessionSource, message_id: str, is_waited_for: Callable[[str], bool]
    ) -> bool:
        """Cancel the run that answers a message, or withdraw a message that no run has read.

        A run continues if it also answers a background request or a message for which `is_waited_for` returns
        True. Return False if the run continues, or if the message is already answered.

        Raises:
            StoreError: The cancellation could not be stored.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMessage:
    """A stored message, with the answer if the message is already answered."""

    event: MessageEvent
    received_at: int
    answer: str | None = None
    details: Metadata = field(default_factory=dict)
    """The details of the answer, such as an error, tool calls and usage. See `Metadata`."""
    is_forgotten: bool = False
    """Whether the answer must no longer be shown."""
    is_cancelled: bool = False
    """Whether the caller disconnected or cancelled the request before there was an answer."""

    @property
    def has_failed(self) -> bool:
        """Whether no answer will arrive, because the message was cancelled or rejected, or the run failed."""
        return self.is_cancelled or self.details.get("error") is not None


UNKNOWN_ACCOUNT: Final = "default"
"""The account name of a bot that has not been connected yet, or has no name."""


class AdapterState(StrEnum):
    """The connection state of an adapter."""

    STOPPED = "stopped"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    DEGRADED = "degraded"
    """Connected, but an update became a dead letter since the last manual connect.

    This state is only displayed. `Liveness.state` is `connected` instead.
    """
    ELSEWHERE = "elsewhere"
    """Not connected, because another server on the same database holds the channel."""
    FAILED = "failed"


@dataclass(slots=True)
class Liveness:
    """The state of an adapter.

    Times are in milliseconds since the epoch. A time is None if the event has not happened yet.
    """

    clock: Clock
    since: int | None = None
    """When the state last changed between connected and not connected."""
    inbound_at: int | None = None
    """When receiving last showed activity, such as a completed poll or an answered heartbeat."""
    outbound_at: int | None = None
    """When a message was last sent."""
    error_code: str | None = None
    error: str | None = None
    retryable: bool = True
    refused: int = 0
    """The number of requests with a wrong signature or secret, plus the number of unreadable updates."""
    dead_updates: int = 0
    """The number of updates since the last manual connect that became dead letters because of a bug."""
    degraded_at: int | None = None
    """When the first of the `dead_updates` became a dead letter."""
    _state: AdapterState = AdapterState.STOPPED
    _reached: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> AdapterState:
        """The state of the connection to the platform."""
        return self._state

    @state.setter
    def state(self, state: AdapterState) -> None:
        was, self._state = self._state, state
        if self.since is None or (was is AdapterState.CONNECTED) is not (state is AdapterState.CONNECTED):
            self.since = self.clock.now()
        if self.is_reachable:
            self._reached.set()
        else:
            self._reached.clear()

    def shown(self) -> dict[str, Json]:
        """Return the state as JSON data for health pages and the status file."""
        state, since, code, why = self._state, self.since, self.error_code, self.error
        if state is AdapterState.CONNECTED and self.dead_updates:
            state, code = AdapterState.DEGRADED, "updates_set_aside"
            since = self.degraded_at
            why = (
                "updates of the platform became dead letters because of a defect in postroom: "
                f"{self.dead_updates}; see `postroom gateway dead`, then `postroom gateway reconnect`"
            )
        return {
            "state": state.value,
            "since": since,
            "inbound_at": self.inbound_at,
            "outbound_at": self.outbound_at,
            "refused": self.refused,
            "error_code": code,
            "error": why,
        }

    @property
    def has_failed(self) -> bool:
        """Whether receiving has ended until the next call of `connect`."""
        return self._state is AdapterState.FAILED

    @property
    def is_reachable(self) -> bool:
        """Whether the platform can be called, even while receiving is interrupted."""
        return self._state in (AdapterState.CONNECTED, AdapterState.RECONNECTING)

    @property
    def may_come_back(self) -> bool:
        """Whether a lost connection may come back without a change of the configuration."""
        return self._state is not AdapterState.CONNECTED and (
            self._state is not AdapterState.FAILED or self.retryable
        )

    async def reached(self) -> None:
        """Wait until the platform can be called."""
        await self._reached.wait()


def pause_ms(attempt: int, *, least: int = 0) -> int:
    """Return the pause after `attempt` failed attempts, in milliseconds.

    The pause grows with each attempt up to one minute, and has random jitter.
    """
    longest = min(500 * 2 ** min(attempt, 10), _MAX_PAUSE_MS)
    return max(random.randint(longest // 2, longest), least)  # noqa: S311 - spreads tries, hides nothing


async def bounded(
    pieces: AsyncIterable[bytes], most: int, announced: str | None = None
) -> AsyncGenerator[bytes]:
    """Yield the pieces of a received body of at most `most` bytes.

    `announced` is the value of the Content-Length header.

    Raises:
        TooLarge: The body has, or announces, more than `most` bytes. At most one piece too many was read.
    """
    text = announced if announced is not None and announced.isascii() and announced.isdigit() else "0"
    total = 0
    if int(text[:18]) <= most:
        async for piece in pieces:
            total += len(piece)
            if total > most:
                break
            yield piece
        else:
            return
    raise TooLarge(f"the file exceeds {most} bytes", value=most)


class BasePlatformAdapter(ABC):
    """Connects one bot to one platform.

    An adapter is idle before `connect` and after `disconnect`. A subclass sets `platform`, `capabilities` and
    `options`. The module of a subclass must be importable without optional libraries. If a library is not
    installed, `load_libraries` and `connect` raise `MissingExtra`. A subclass must never log a token, a
    secret or the text of a message.
    """

    platform: ClassVar[Platform]
    capabilities: ClassVar[ChannelCapabilities]
    options: ClassVar[type[PlatformConfig]] = PlatformConfig
    """The table of the platform in `gateway.toml`."""
    at_root: ClassVar[bool] = False
    """Whether the adapter's routes are at the root of the server instead of below `/channels`."""
    largest_body: ClassVar[int] = 1024 * 1024
    """The maximum size, in bytes, of a request to the adapter's routes."""
    passing: ClassVar[tuple[type[Exception], ...]] = ()
    """The errors that the platform's library raises if the platform does not answer.

    After such an error, the update is retried, because it is not the cause.
    """

    def __init__(
        self, config: PlatformConfig, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self.liveness = Liveness(self._clock)
        self._timer = timer or SystemTimer()
        self._pacing = Pacing(self.capabilities.rates, self._clock, self._timer)
        self._tasks = Tasks(f"channel {self.platform.value}")
        self._inbound: Inbound | None = None
        self.is_ours: Callable[[], bool] = lambda: True
        """Return whether this server, of all on its database, holds the channel. Set by the gateway."""
        self.is_shared = False
        """Whether another server on the database may answer a request to this one. Set by the gateway."""
        self.may_react = True
        """Whether the bot may add reactions, until the platform denies the permission."""
        self.files: FileStore | None = None
        """The file store, which the gateway sets, for adapters that show or receive files themselves."""
        self.web_chats: WebChats | None = None
        """The store of the chat page's conversations, which the gateway sets."""
        self.keep_dead: Callable[[str, str, str, str], Awaitable[None]] | None = None
        """Store a raw update as a dead letter: account, key, text, reason. Set by the gateway."""
        self.commands: Sequence[tuple[str, str]] = ()
        """The name and help of each command, which the gateway sets, for platforms with a command menu."""
        self.is_held_up = False
        """Whether updates wait, because an earlier update could not be processed yet."""
        self._failing: OrderedDict[str, int] = OrderedDict()
        """The number of attempts at each update that triggered a bug, keyed by a digest of the update."""
        self._file_turn = asyncio.Semaphore(2)
        """Limits how many files are in memory at the same time.

        A file can have 20 MB, and 32 answers are sent concurrently.
        """
        self._pending_messages: dict[str, MessageEvent] = {}
        """The next message of each busy session, by session key.

        The runner keeps this mapping current.
        """

    # Set up by the gateway.

    def set_message_handler(self, inbound: Inbound) -> None:
        """Set the object that receives the adapter's messages."""
        self._inbound = inbound

    @property
    def account(self) -> str:
        """The permanent name of the bot. `connect` sets the value."""
        return UNKNOWN_ACCOUNT

    def lock_identity(self) -> str | None:
        """Return the secret that only one process on a machine may use to receive messages.

        Return None if several processes may receive messages.
        """
        return None

    @property
    def lease(self) -> str | None:
        """The name of the channel's lease, or None if several servers may use the channel at once."""
        digest = sha256((self.lock_identity() or self.config.token or "").encode()).hexdigest()[:8]
        return f"channel {self.platform.value} {digest}"

    def remember(self, source: SessionSource, message_id: str) -> None:  # noqa: B027 - optional
        """Record the newest stored message of a chat or thread.

        The gateway calls `remember` before `connect`. An adapter uses the newest message to request the
        messages that the bot has missed.
        """

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes that the platform calls over HTTP.

        The routes are mounted below `/channels`, and each path must begin with `/<platform>`. The handler of
        each route must authenticate its caller, because the server does not.
        """
        return ()

    # Connecting and disconnecting.

    def load_libraries(self) -> None:  # noqa: B027 - most channels need no optional library
        """Import the optional libraries of the channel. Call the method on a thread.

        `postroom gateway config check` calls the method, too.

        Raises:
            MissingExtra: A library is not installed.
        """

    @abstractmethod
    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Check the credentials, and start to receive messages.

        The call returns when messages can arrive. A background task receives messages, and reconnects after
        failures with growing pauses. The gateway reconnects a failed channel, unless the platform refused a
        credential.

        Raises:
            CredentialRefused: The platform refuses a token or a password.
            ConfigError: A token, scope or intent is missing or wrong. The remedy names it.
            MissingExtra: A library is not installed.
            ServerUnavailable: The platform is unreachable. Try again.
        """

    @abstractmethod
    async def disconnect(self) -> None:
        """Stop receiving messages. A second call has no effect.

        After the call returns, no message is received or acknowledged.
        """

    # Outgoing calls. If the platform refuses a call, the method does not raise: its result contains the
    # refusal.

    @abstractmethod
    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send one Markdown message of at most `capabilities.limit` units.

        If the platform refuses the markup, the message is sent as plain text. If the platform supports dedupe
        keys, `metadata["dedupe_key"]` prevents duplicate messages.
        """

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text of a sent message."""
        return SendResult.failed(SendErrorKind.BAD_FORMAT, f"{self.platform.value} cannot edit messages")

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a sent message."""
        return SendResult.failed(SendErrorKind.BAD_FORMAT, f"{self.platform.value} cannot delete messages")

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:  # noqa: B027 - optional
        """Show a typing indicator in a chat for a few seconds."""

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Add a "seen" reaction to a message, or remove the reaction.

        The `message_id` of the result is the id of the reaction, or None if the reaction has no id. To remove
        a reaction, pass the id of the reaction as `takes_back`, or the id of the message if the reaction has
        no id. A rate limit on reactions does not delay messages.
        """
        return SendResult.failed(
            SendErrorKind.BAD_FORMAT, f"{self.platform.value} does not support reactions"
        )

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send a file."""
        return SendResult.failed(SendErrorKind.BAD_FORMAT, f"{self.platform.value} cannot send files")

    def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a received file in pieces.

        Raises:
            TooLarge: The file is larger than `max_bytes`. Little more than that was read.
            ServerUnavailable: The file could not be fetched.
        """
        raise InvalidArgument(f"{self.platform.value} cannot receive files", value=attachment.name)

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Send a card with buttons. On a platform without buttons, the text lists the possible answers."""
        choices = "\n".join(f"{button.label}: /{button.value}" for button in card.buttons)
        return await self.send(chat_id, f"{card.text}\n\n{choices}".strip(), None, metadata)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text and the buttons of a card."""
        return await self.edit_message(chat_id, message_id, card.text, metadata)

    # For subclasses: receiving.

    def _start_receiving(self, look: Callable[[int], Awaitable[int]], *, after_ms: int = 0) -> None:
        """Report that the channel is connected, and run `_receive` in the background."""
        if self._tasks.closed:
            self._tasks = Tasks(f"channel {self.platform.value}")
        self._connected()
        self.liveness.retryable = True
        self._tasks.start(self._receive(look, after_ms=after_ms), name="receive")

    async def _end_tasks(self) -> None:
        """Stop all tasks of the channel within 10 seconds."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._tasks.close()
        except TimeoutError:
            _LOG.warning("channel.slow_to_end", platform=self.platform.value)
        if self.liveness.state is not AdapterState.FAILED:
            self.liveness.state = AdapterState.STOPPED

    async def _receive(self, look: Callable[[int], Awaitable[int]], *, after_ms: int = 0) -> None:
        """Poll the platform for new updates, until polling fails permanently.

        `look(failures)` polls once, and returns the pause before the next poll in milliseconds. `failures` is
        the number of failed polls in a row.
        """
        failures = 0
        await self._timer.sleep(after_ms)
        while not self.liveness.has_failed:
            await self._until_ours()
            try:
                pause = await look(failures)
                if not self.liveness.has_failed and (failures or self.liveness.error_code != _DEFECT):
                    self._connected()
                failures = 0
            except CredentialRefused as refused:
                self._fail("unauthorized", f"{refused.message}; {refused.remedy}", retryable=False)
            except Exception as error:  # poll again after any error
                failures += 1
                # Report why receiving is interrupted. The pause, in ms, is at least the one that the platform
                # asks for.
                platform = self.platform.value
                if isinstance(error, PostroomError):
                    code, why = str(error.details.get("channel", "unreachable")), error.message
                    if isinstance(error, StoreError):
                        code, why = "not_kept", f"an inbound message could not be stored: {error.code}"
                    _LOG.warning("channel.interrupted", platform=platform, code=code, error=error.code)
                else:
                    code, why = _DEFECT, "receiving messages failed; see the log"
                    _LOG.error("channel.interrupted", platform=platform, code=code, exc_info=error)
                if not self.liveness.has_failed:
                    self.liveness.state = AdapterState.RECONNECTING
                    self.liveness.error_code, self.liveness.error = code, why
                wait = error.details.get("retry_after_ms") if isinstance(error, PostroomError) else None
                pause = pause_ms(failures, least=wait if isinstance(wait, int) else 0)
            if pause and not self.liveness.has_failed:
                await self._timer.sleep(pause)

    async def take_until_kept(self, update: Json | bytes, take: Callable[[], Awaitable[None]]) -> None:
        """Process an update that the platform sends only once, and retry after a failure."""
        attempt = 0
        passing: tuple[type[Exception], ...] = (PostroomError, *self.passing)
        while True:
            try:
                await self.take_in(update, take)
            except passing as error:
                kind, wait_ms = type(error).__name__, getattr(error, "wait_ms", None)
                _LOG.warning("channel.not_kept", platform=self.platform.value, attempt=attempt, why=kind)
                self.is_held_up = True
                await self._timer.sleep(pause_ms(attempt, least=wait_ms or 0))
                attempt += 1
            else:
                self.is_held_up = False
                return

    async def is_taken(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Process a request in a background task, and return whether the request may be acknowledged.

        The task continues if the caller disconnects.
        """
        if self._tasks.closed:
            return False

        async def is_kept() -> bool:
            try:
                await work()
            except (PostroomError, OSError) as error:
                _LOG.warning("channel.not_kept", platform=self.platform.value, why=type(error).__name__)
                return False
            return True

        task = self._tasks.start(is_kept(), name="request")
        await asyncio.wait({task})
        return not task.cancelled() and task.exception() is None and task.result()

    async def handle_message(self, event: MessageEvent) -> None:
        """Pass a message to the gateway. When the call returns, the message is stored durably.

        Raises:
            StoreError: The message was not stored. Do not acknowledge it.
            InputError: The message can never be stored. Acknowledge it.
        """
        self._heard()
        if not self.is_ours():  # this server was frozen or disconnected in the meantime
            raise StoreUnavailable(f"another server is connected to the channel {self.platform.value}")
        if self._inbound is None:
            raise StoreUnavailable(f"the channel {self.platform.value} is not ready to receive messages yet")
        await self._inbound.accept(event)

    async def take_in(self, update: Json | bytes, take: Callable[[], Awaitable[None]]) -> None:
        """Process one update. When the call returns, the update may be acknowledged to the platform.

        An update that cannot be read or stored becomes a dead letter at once. After three attempts, an update
        that triggers a bug becomes a dead letter and degrades the channel.

        Raises:
            PostroomError: The update was not processed. Do not acknowledge it, and retry after a pause.
        """
        try:
            await take()
        except Exception as error:  # process later updates after any error
            is_passing = isinstance(error, (StoreError, *self.passing))
            if is_passing or (isinstance(error, PostroomError) and error.retryable):
                raise
            # Count a failed attempt at an update. After the last attempt, the update becomes a dead letter.
            if isinstance(update, bytes):
                text = _SECRET_IN_TEXT.sub(r"\1", update.decode("utf-8", "replace"))
            else:
                if isinstance(update, dict):
                    update = {name: value for name, value in update.items() if name not in _SECRETS}
                text = json.dumps(update, ensure_ascii=False, default=str)
            # People sometimes paste tokens into messages.
            raw = storable(PLATFORM_TOKENS.sub("(hidden token)", text))
            key = sha256(raw.encode()).hexdigest()
            before = self._failing.pop(key, 0)
            if isinstance(error, InputError):
                tries, why = MAX_TRIES, f"an invalid update: {error.message}"
                self.liveness.refused += 1
                kind = type(error).__name__
                _LOG.warning("channel.refused", platform=self.platform.value, code=error.code, kind=kind)
            else:
                tries, why = (
                    min(before + 1, MAX_TRIES),
                    (f"an update caused a defect: {type(error).__name__}"),
                )
                _LOG.error("channel.update_failed", platform=self.platform.value, tries=tries, exc_info=error)
            self._failing[key] = tries if tries < MAX_TRIES else before
            if len(self._failing) > _MAX_FAILING:
                self._failing.popitem(last=False)
            if tries < MAX_TRIES:
                if self.liveness.state is AdapterState.CONNECTED:
                    self.liveness.state = AdapterState.RECONNECTING
                self.liveness.error_code, self.liveness.error = _DEFECT, f"{why}; see the log"
                raise ServerUnavailable(
                    f"{why}; see the log", remedy="postroom retries", details={"channel": _DEFECT}
                ) from error
            if before < MAX_TRIES:
                if self.keep_dead is not None:
                    await self.keep_dead(self.account, key, raw[:MAX_RAW_LENGTH], why)
                if not isinstance(error, InputError):
                    if not self.liveness.dead_updates:
                        self.liveness.degraded_at = self._clock.now()
                    self.liveness.dead_updates += 1
                self._failing[key] = MAX_TRIES
        if self.liveness.error_code == _DEFECT:
            self._connected()

    def _turn(
        self,
        method: str,
        chat_id: str | None = None,
        metadata: Metadata | None = None,
        *,
        is_group: bool = False,
        gives_way: bool = False,
    ) -> AbstractAsyncContextManager[Turn]:
        """Wait until the rate limits allow a call to the platform."""
        fields = metadata or {}
        key, is_draft = fields.get("dedupe_key"), fields.get("draft") is True
        return self._pacing.turn(method, chat_id, is_group=is_group, key=key, gives_way=gives_way or is_draft)

    async def _until_ours(self) -> None:
        """Wait until this server holds the lease of the channel."""
        while not self.is_ours():
            await self._timer.sleep(_LOOK_AGAIN_MS)

    def _heard(self) -> None:
        """Record the time at which the platform has sent something."""
        self.liveness.inbound_at = self._clock.now()

    def _connected(self) -> None:
        """Record that the channel is connected and receiving."""
        self._heard()
        self.liveness.state = AdapterState.CONNECTED
        self.liveness.error_code = self.liveness.error = None

    def _said(self) -> None:
        """Record the time at which a message was sent."""
        self.liveness.outbound_at = self._clock.now()

    def _fail(self, code: str, message: str, *, retryable: bool) -> None:
        """Report a failure that ended receiving.

        If `retryable` is true, the gateway reconnects the channel.
        """
        self.liveness.state = AdapterState.FAILED
        self.liveness.error_code = code
        self.liveness.error = message
        self.liveness.retryable = retryable
