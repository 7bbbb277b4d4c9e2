"""Matrix by its client-server API: long polls for incoming events, transactions for outgoing ones.

The token is an access token; there is no log-in by password.

There is no encryption: an encrypted room gets one notice that we cannot read it, and nothing is sent there.
The position in the stream advances when every message of a batch is stored. Only invitations from users in
`allow` are accepted. A gap that the homeserver leaves in a room after a long absence is requested.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from msgspec import Meta

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, CredentialRefused, ServerUnavailable
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.gateway.capabilities import ChannelCapabilities, LengthUnit, Rate, RateLimits
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import FILES, Attachment, SendErrorKind, SendResult
from postroom.gateway.platforms import matrix_wire as wire
from postroom.gateway.platforms.base import TOO_OFTEN, AdapterState, BasePlatformAdapter, Metadata
from postroom.gateway.platforms.matrix_http import Answer, Homeserver
from postroom.gateway.platforms.matrix_intake import Intake, SyncPosition
from postroom.gateway.platforms.options import FilePath, refuse_address, secret_remedy
from postroom.gateway.platforms.safe_text import to_html
from postroom.gateway.session import Platform
from postroom.log import get_logger

_LOG = get_logger(__name__)
_JOIN_TRIES = 5
_INSISTS = 5
"""Rounds that wait for events that the homeserver cannot look up: one broken event must not stop all others.
"""
_RENDERED_ON_THE_LOOP = 8_000


class MatrixOptions(PlatformConfig, frozen=True, kw_only=True):
    """The table [platforms.matrix]."""

    base_url: str
    """The homeserver, such as `https://matrix.example.org`."""
    user_id: str | None = None
    """The user of the token; the token of another user is refused."""
    sync_file: FilePath | None = None
    """Keeps the position in the stream; None: each process begins at its start."""
    poll_ms: Annotated[int, Meta(ge=1_000, le=300_000)] = 30_000
    """How long the homeserver may wait for something new."""
    command_prefix: str = "!"
    """A prefix of commands besides `/`, which clients intercept; empty for none."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url, plain=True)


class MatrixAdapter(BasePlatformAdapter):
    """One user of one homeserver.

    Raises:
        ConfigError: the token or a setting is missing or wrong.
    """

    platform = Platform.MATRIX
    options = MatrixOptions
    capabilities = ChannelCapabilities(
        # The platform's own limit is 65,536 bytes for the whole event, and that holds the text plain and as
        # HTML: so 16,000 bytes, not characters. In an edit the text for old clients is kept short.
        limit=16_000,
        unit=LengthUnit.UTF8,
        edits=True,
        threads=True,
        typing=True,
        reactions=True,
        media=FILES,
        min_edit_interval_ms=1_500,
        # Each homeserver has its own limits; this is ours, so that a refused reaction does not delay answers.
        rates=RateLimits(methods={"react": Rate(10, 1_000)}),
    )

    def __init__(
        self, config: MatrixOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = config
        self._home = Homeserver(self._options.base_url, _token(config))
        self._me = wire.Ourselves(user_id="", command_prefix=self._options.command_prefix)
        self._position = SyncPosition(self._options.sync_file)
        self._intake = self._fresh_intake()
        self._joining: set[str] = set()

    @property
    def account(self) -> str:
        """Our user id; known when `connect` has returned."""
        return self._me.user_id or "default"

    def lock_identity(self) -> str | None:
        """Return the token: two who receive with it would each answer."""
        return self.config.token

    # Its life.

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Check the token, find the place in the stream and begin to receive."""
        await self.disconnect()
        self._tasks = Tasks(f"channel {self.platform.value}")
        self.liveness.state = AdapterState.CONNECTING
        try:
            await self._home.open()
            await self._find_out_who_we_are()
            await self._position.load(self._me.user_id)
            if self._position.since is None:
                await self._begin()
        except BaseException:
            await self.disconnect()
            raise
        self._connected()
        self._tasks.start(self._receive(self._look), name="receive")

    async def disconnect(self) -> None:
        """End receiving and every connection."""
        await self._tasks.close()
        await self._home.close()
        self._intake = self._fresh_intake()
        self._joining.clear()
        self.liveness.state = AdapterState.STOPPED

    async def _find_out_who_we_are(self) -> None:
        answer = await self._home.ask("GET", wire.path_of("account", "whoami"))
        if answer.is_fatal or answer.status == 403:
            raise CredentialRefused(
                f"the homeserver rejected the access token: {answer.said()}",
                remedy=secret_remedy("token", "a new access token of the bot's user"),
            )
        user_id = answer.body.get("user_id")
        if not answer.ok or not isinstance(user_id, str):
            raise ServerUnavailable(
                f"the homeserver did not identify the bot: {answer.said()}",
                remedy="check Matrix's `base_url`, and that the homeserver runs",
            )
        wanted = self._options.user_id
        if wanted not in (None, user_id):
            raise ConfigError(
                f"the access token belongs to {user_id}",
                value=wanted,
                remedy=f"correct user_id, or {secret_remedy('token', 'the token of that user')}",
            )
        profile = await self._home.ask("GET", wire.path_of("profile", user_id, "displayname"))
        name = profile.body.get("displayname") if profile.ok else None
        self._me = wire.Ourselves(
            user_id=user_id,
            name=name if isinstance(name, str) and name.strip() else None,
            command_prefix=self._options.command_prefix,
        )
        self._intake = self._fresh_intake()

    def _fresh_intake(self) -> Intake:
        return Intake(
            self._home,
            self._position,
            self._me,
            accept=self.handle_message,
            inbound=lambda: self._inbound,
            take_in=self.take_in,
        )

    async def _begin(self) -> None:
        """Start at the present: earlier messages are history."""
        answer = await self._sync(timeout_ms=0)
        since = answer.body.get("next_batch")
        if not answer.ok or not isinstance(since, str):
            raise ServerUnavailable(f"the homeserver gave no stream position: {answer.said()}")
        self._intake.begin(answer.body)
        self._invited(answer.body)
        await self._position.move(since, self._clock.now())

    # What comes in.

    async def _look(self, failures: int) -> int:
        """Take one batch; the position moves when all of it is kept."""
        self._intake.insists = failures < _INSISTS
        answer = await self._sync(timeout_ms=self._options.poll_ms)
        if answer.is_fatal:
            raise CredentialRefused(
                f"the access token is no longer valid: {answer.said()}",
                remedy=secret_remedy("token", "a new access token of the bot's user"),
            )
        since = answer.body.get("next_batch")
        if not answer.ok or not isinstance(since, str):
            raise ServerUnavailable(
                f"the homeserver gave no batch: {answer.said()}",
                remedy="postroom retries",
                details={"retry_after_ms": answer.retry_after_ms},
            )
        self._heard()
        await self.take_in(answer.body, partial(self._take, answer.body))
        await self._position.move(since, self._clock.now())
        return 0

    async def _take(self, batch: Mapping[str, Any]) -> None:
        await self._intake.take(batch)
        self._invited(batch)

    async def _sync(self, *, timeout_ms: int) -> Answer:
        """Request new events; with the full state of rooms if this process does not know them yet."""
        query = {"filter": wire.SYNC_FILTER, "timeout": str(timeout_ms)}
        if self._position.since is not None:
            query["since"] = self._position.since
            if not self._intake.knows_rooms:
                query["full_state"] = "true"
        return await self._home.ask("GET", wire.path_of("sync", query=query), timeout_ms=timeout_ms + 30_000)

    # Invitations.

    def _invited(self, batch: Mapping[str, Any]) -> None:
        for room_id, info in wire.rooms_of(batch, "invite"):
            sender = wire.inviter(wire.events_of(info, "invite_state"), self._me)
            allowed = sender in self.config.allow or "*" in self.config.allow
            if sender is None or not allowed or room_id in self._joining:
                _LOG.info("matrix.invitation_passed_over", room=room_id)
                continue
            self._joining.add(room_id)
            self._tasks.start(self._join(room_id), name="join")

    async def _join(self, room_id: str) -> None:
        """Join a room while receiving continues: a room on another server may take minutes."""
        for attempt in range(_JOIN_TRIES):
            answer = await self._home.ask("POST", wire.path_of("join", room_id), {}, timeout_ms=120_000)
            if answer.ok or (400 <= answer.status < 500 and answer.status not in (408, 429)):
                break
            await self._timer.sleep(answer.retry_after_ms or 2_000 * 2**attempt)
        if not answer.ok:
            _LOG.warning("matrix.not_joined", room=room_id, answer=answer.said())
        self._joining.discard(room_id)

    # What goes out.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message to a room; with the same `dedupe_key` the homeserver accepts it only once."""
        thread_id = (metadata or {}).get("thread_id")
        html = await _rendered(content)
        contents = wire.content_of(content, html, thread_id=thread_id, reply_to=reply_to)
        return await self._say(chat_id, content, contents, _key(metadata), metadata)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace a sent message. A repetition is harmless, so that no key is needed."""
        contents = wire.edit_of(message_id, content, await _rendered(content))
        result = await self._say(chat_id, content, contents, uuid4().hex, metadata)
        return SendResult.sent(message_id) if result.success else result

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a sent message."""
        txn = wire.transaction_id("redact", chat_id + message_id)
        answer = await self._home.ask("PUT", wire.path_of("rooms", chat_id, "redact", message_id, txn), {})
        return self._result(answer)

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show for ten seconds that an answer is being written."""
        path = wire.path_of("rooms", chat_id, "typing", self._me.user_id)
        async with self._turn("typing", None, metadata, gives_way=True) as turn:
            if turn.wait_ms:
                return
            told = {"typing": True, "timeout": 10_000}
            result = self._result(await self._home.ask("PUT", path, told, timeout_ms=5_000))
            if result.error_kind is SendErrorKind.RATE_LIMITED:
                turn.refused(result.retry_after_ms)

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Annotate a message; taking that back is a redaction of the annotation."""
        txn = wire.transaction_id("react", chat_id + (takes_back or message_id))
        path = wire.path_of("rooms", chat_id, "send", "m.reaction", txn)
        content: dict[str, Json] = wire.reaction_to(message_id)
        if takes_back:
            path, content = wire.path_of("rooms", chat_id, "redact", takes_back, txn), {}
        async with self._turn("react", None, metadata, gives_way=True) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            result = self._result(await self._home.ask("PUT", path, content))
            if result.error_kind is SendErrorKind.RATE_LIMITED:
                turn.refused(result.retry_after_ms)
            return result

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Upload a file and show it in a room."""
        mime = attachment.mime or "application/octet-stream"
        path = wire.path_of("upload", base="/_matrix/media/v3")
        async with self._file_turn:
            raw = await data.whole()
            answer = await self._home.ask("POST", path, raw, content_type=mime, timeout_ms=120_000)
        url = answer.body.get("content_uri")
        if not answer.ok or not isinstance(url, str):
            refused = self._result(answer)  # nothing was shown yet, so that nothing can be doubled
            kind = refused.error_kind if refused.error_kind is not SendErrorKind.UNKNOWN else None
            return SendResult.failed(kind or SendErrorKind.TRANSIENT, f"not uploaded: {answer.said()}")
        thread_id = (metadata or {}).get("thread_id")
        content = wire.media_of(url, attachment, data.size, caption, thread_id)
        return await self._say(chat_id, caption or "", [content], f"file {_key(metadata)}", metadata)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a file that came in, by our own homeserver only."""
        path = wire.media_path(attachment.ref)
        if path is None:
            raise ServerUnavailable(
                "this is not a Matrix media URI (mxc://...)", remedy="send the file again in the room"
            )
        found = await self._home.download(path, max_bytes=max_bytes)
        if isinstance(found, Answer):
            raise ServerUnavailable(f"the file could not be downloaded: {found.said()}")
        yield found

    async def _say(
        self,
        chat_id: str,
        text: str,
        contents: list[dict[str, Json]],
        key: str,
        metadata: Metadata | None,
    ) -> SendResult:
        """Send the first of these contents that the homeserver does not refuse for its form."""
        if not self._intake.knows_rooms:
            return SendResult.failed(
                SendErrorKind.TRANSIENT, "postroom does not know yet which rooms are encrypted"
            )
        if (room := self._intake.rooms.get(chat_id)) is not None and room.encrypted:
            return SendResult.failed(
                SendErrorKind.FORBIDDEN, "the room is encrypted, and postroom sends nothing unencrypted to it"
            )
        if self.capabilities.unit.measure(text) > self.capabilities.limit:
            return SendResult.failed(SendErrorKind.TOO_LONG, f"more than {self.capabilities.limit} bytes")
        # Each homeserver sets its own limits for a user, and reports when one was reached.
        async with self._turn("send", None, metadata) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            for number, content in enumerate(contents, start=1):
                answer = await self._put(chat_id, content, wire.transaction_id(f"say{number}", key))
                if answer.status not in (400, 413):
                    break
            result = self._result(answer)
            if result.error_kind is SendErrorKind.RATE_LIMITED:
                turn.refused(result.retry_after_ms)
            return result

    async def _put(self, room_id: str, content: dict[str, Json], txn: str) -> Answer:
        return await self._home.ask(
            "PUT", wire.path_of("rooms", room_id, "send", "m.room.message", txn), content
        )

    def _result(self, answer: Answer) -> SendResult:
        if answer.ok:
            self._said()
            event_id = answer.body.get("event_id")
            return SendResult.sent(event_id if isinstance(event_id, str) else None)
        if not answer.status:
            kind = SendErrorKind.UNKNOWN if answer.lost else SendErrorKind.TRANSIENT
            return SendResult.failed(kind, "the homeserver did not answer")
        if answer.is_fatal:
            self._fail(
                "unauthorized", f"the access token is no longer valid: {answer.said()}", retryable=False
            )
        return wire.refusal(answer.status, answer.errcode, answer.retry_after_ms)


def _token(config: PlatformConfig) -> str:
    """Return the access token.

    Raises:
        ConfigError: there is none, or what no token holds is in it.
    """
    token = config.token
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(
            "Matrix: the access token is missing", remedy=secret_remedy("token", "the bot's access token")
        )
    return token


def _key(metadata: Metadata | None) -> str:
    key = (metadata or {}).get("dedupe_key")
    return str(key) if key else uuid4().hex


async def _rendered(text: str) -> str:
    return to_html(text) if len(text) <= _RENDERED_ON_THE_LOOP else await asyncio.to_thread(to_html, text)
