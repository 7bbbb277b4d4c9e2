"""Discord, by its gateway and REST, through discord.py (extra `discord`).

Limits of Discord, and how the adapter handles them:

- It has no acknowledgements. A session advances with received messages, not with stored ones. So an
  update that cannot be stored is held here, in order, and retried until it is. When `max_held` are held,
  the connection is closed; Discord keeps later updates, and a RESUME delivers them, for some minutes.
- After a longer absence there is a new session, without the missed updates. Messages are then requested,
  channel by channel, after the last stored one (`backfill`), up to `backfill_limit` each, in the 200 channels
  with the newest messages. Other updates are lost: messages in channels unknown to this process, unless
  they are in `channels` or came from `remember`; edits, deletions, buttons and commands of that time;
  updates held in memory when the process was killed.
- Messages are unique for some minutes only (`nonce`): a repetition after that is another message.
- If a button or command is answered later than three seconds after it, Discord shows a failure, although it
  was accepted.
- It refuses no markup, so nothing is sent again as plain text.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, CredentialRefused, ServerUnavailable, TooLarge
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.gateway.capabilities import ChannelCapabilities, Rate, RateLimits
from postroom.gateway.events import FILES, Attachment, Card, SendErrorKind, SendResult
from postroom.gateway.platforms import discord_library
from postroom.gateway.platforms import discord_wire as wire
from postroom.gateway.platforms.base import (
    TOO_OFTEN,
    AdapterState,
    BasePlatformAdapter,
    Metadata,
    pause_ms,
)
from postroom.gateway.platforms.discord_intake import ABSENCE, DiscordOptions, Intake, bot_token
from postroom.gateway.platforms.discord_library import Bot, Cut, Refused
from postroom.gateway.platforms.discord_wire import RestFailure
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

_LOG = get_logger(__name__)
READY_SECONDS = 30
SETTLE_SECONDS = 2
LEAST_BEFORE_IDENTIFY_MS = 5_000
"""The minimum time between two new sessions that Discord allows."""
RESUMES = 5
"""After this many failures in a row, a new session is started."""
PORTAL = "https://discord.com/developers/applications"
_MESSAGES = "/channels/{channel_id}/messages"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"
_REACTION = f"{_MESSAGE}/reactions/{{emoji}}/@me"
_TOKEN = ("unauthorized", "Discord rejected the token", f"a new token: {PORTAL} → Bot → Reset Token")
_REFUSALS: Mapping[int, tuple[str, str, str]] = {
    401: _TOKEN,
    4004: _TOKEN,
    4010: (
        "sharding",
        "Discord rejected the shard",
        "report this defect: postroom makes one connection for all guilds",
    ),
    4011: ("sharding", "the bot is in too many guilds for one connection", "remove the bot from some guilds"),
    4012: (
        "library",
        "Discord no longer supports this version of its API",
        "upgrade postroom: this release uses a version of the API that has ended",
    ),
    4013: ("intents", "Discord rejected an invalid intent", "upgrade postroom"),
    4014: (
        "missing_intent",
        "the bot may not read messages: the privileged intent `Message Content` is off",
        f"enable it: {PORTAL} → Bot → Privileged Gateway Intents → Message Content Intent",
    ),
}


class DiscordAdapter(BasePlatformAdapter):
    """Speaks with Discord as one bot."""

    platform = Platform.DISCORD
    options = DiscordOptions
    passing = (RestFailure, OSError)
    capabilities = ChannelCapabilities(
        # Code points, by the word of its makers (discord/discord-api-docs 1315).
        limit=2_000,
        edits=True,
        threads=True,
        typing=True,
        reactions=True,
        media=FILES,
        # docs.discord.com: 50 calls a second; limits of a channel are in answers, which the library reads.
        # Reactions have our own limit, so that their refusal does not delay answers.
        rates=RateLimits(bot=Rate(50, 1_000), methods={"react": Rate(8, 1_000)}),
    )

    def __init__(
        self, config: DiscordOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = config
        self._intake = Intake(
            self._options,
            request=self._request,
            accept=self.handle_message,
            take_until_kept=self.take_until_kept,
            inbound=lambda: self._inbound,
        )
        self._bot: Bot | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._greeted = False
        self._attempt = 0

    @property
    def account(self) -> str:
        """The bot's own id; `default` before it is known."""
        return "default" if self._intake.me is None else self._intake.me.user_id

    def lock_identity(self) -> str | None:
        """Return the token: two processes that receive with it would both answer every message."""
        return self.config.token

    def remember(self, source: SessionSource, message_id: str) -> None:
        """Note the newest stored message of a channel or thread: later ones are requested."""
        if wire.is_id(at := source.thread_id or source.chat_id) and wire.is_id(message_id):
            self._intake.remember(at, message_id)

    # Its life.

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Log in and begin to receive; see the base."""
        token = bot_token(self.config.token)
        await asyncio.to_thread(discord_library.load)
        await self.disconnect()
        self.liveness.state = AdapterState.CONNECTING
        self._tasks = Tasks(f"channel {self.platform.value}")
        discord_library.direct(self._options.base_url.rstrip("/"))
        bot = Bot(token, self._on_update, timeout_seconds=self._options.timeout_seconds)
        connected = False
        try:
            self._intake.me = wire.Me(user_id=await bot.login())
            await self._begin(bot)
            connected = True
        except Refused as refused:
            raise self._refused(refused.code) from None
        except (Cut, RestFailure, TimeoutError) as error:
            why = str(error) if isinstance(error, RestFailure) else "the gateway started no session"
            self._fail("unreachable", why, retryable=True)
            raise ServerUnavailable(why, remedy="check whether Discord can be reached from here") from None
        finally:
            if not connected:
                await bot.close()
        self._bot = bot
        self.liveness.error_code = self.liveness.error = None
        self._keeping = self._tasks.start(self._watched(self._intake.run), name="keep")
        self._receiving = self._tasks.start(self._watched(partial(self._stay_connected, bot)), name="receive")

    async def disconnect(self) -> None:
        """End everything. Received updates are stored first, if that takes at most two seconds."""
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])
            self._receiving = None
        if (bot := self._bot) is not None:
            await bot.hang_up(discord_library.GOODBYE)
            if self._keeping is not None and not self._keeping.done():
                await self._intake.settled(0 if self.is_held_up else SETTLE_SECONDS)
        self._bot = None
        await self._tasks.close()
        if bot is not None:
            await bot.close()
        self.liveness.state = AdapterState.STOPPED

    async def _begin(self, bot: Bot) -> None:
        """Open the first session and wait until it is greeted."""
        self._greeted = False
        async with asyncio.timeout(READY_SECONDS):
            await bot.open(resume=False)
            while not self._greeted:
                await bot.poll()
                self._heard()

    async def _watched(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run background work whose failure must be visible, because nothing would be received any longer."""
        try:
            await work()
        except Exception as error:
            self._fail("internal", f"the adapter stopped: {type(error).__name__}", retryable=True)
            raise

    async def _stay_connected(self, bot: Bot) -> None:
        """Listen without end, reconnecting as often as needed."""
        try:
            while True:
                resumable = await self._listen(bot)
                self.liveness.state = AdapterState.RECONNECTING
                await self._intake.room()
                await self._open_again(bot, resumable=resumable)
        except Refused as refused:
            await bot.hang_up()
            self._refused(refused.code)

    async def _listen(self, bot: Bot) -> bool:
        """Receive updates until the connection ends or memory is full; return whether it can be resumed."""
        try:
            while not self._intake.full:
                await bot.poll()
                self._heard()
        except Cut as cut:
            if cut.unreadable:
                self.liveness.refused += 1
            _LOG.info("discord.cut", resumable=cut.resumable, unreadable=cut.unreadable)
            return cut.resumable
        await bot.hang_up()
        return True

    async def _open_again(self, bot: Bot, *, resumable: bool) -> None:
        """Open the gateway again; the first try to resume is made at once, each other after a pause."""
        asked_ms = 0
        while True:
            resume = resumable and self._attempt < RESUMES
            if self._attempt or not resume:
                least = max(asked_ms, 0 if resume else LEAST_BEFORE_IDENTIFY_MS)
                await self._timer.sleep(pause_ms(self._attempt, least=least))
            self._attempt += 1
            await self._until_ours()
            try:
                return await bot.open(resume=resume)
            except Cut as cut:
                resumable = resumable and cut.resumable
            except RestFailure as failure:
                if failure.status == 401:
                    raise Refused(401) from None
                asked_ms = failure.wait_ms or 0

    def _on_update(self, name: str, data: object) -> None:
        """Accept an event of the gateway at once, into the queue."""
        self._attempt = 0
        if name not in ("READY", "RESUMED"):
            self._intake.hold(name, data)
            return
        self._greeted = True
        self.liveness.state = AdapterState.CONNECTED
        if name == "READY" and self._options.backfill:
            self._intake.watch(self._clock.now())
            self._intake.hold(ABSENCE, None)

    def _refused(self, code: int) -> ConfigError:
        name, message, remedy = _REFUSALS[code]
        is_token = _REFUSALS[code] is _TOKEN
        self._fail(name, f"{message}; {remedy}", retryable=not is_token)
        return (CredentialRefused if is_token else ConfigError)(message, value=code, remedy=remedy)

    # What goes out.

    async def _request(self, method: str, path: str, **told: Any) -> Any:
        if self._bot is None:
            raise RestFailure("not connected to Discord")
        try:
            return await self._bot.request(method, path, **told)
        except RestFailure as failure:
            if failure.status == 401:
                self._refused(401)
            raise

    async def _say(self, method: str, path: str, metadata: Metadata | None = None, **told: Any) -> SendResult:
        """Call Discord to show something, and return the result."""
        if not all(wire.is_id(told[name]) for name in ("channel_id", "message_id") if name in told):
            return SendResult.failed(
                SendErrorKind.NOT_FOUND, "there is no such chat or message: a Discord id has only digits"
            )
        chat, is_typing, is_mark = told.get("channel_id"), path.endswith("/typing"), path == _REACTION
        counted = ("typing", None) if is_typing else ("react", None) if is_mark else (method, chat)
        async with self._turn(*counted, metadata, gives_way=is_typing or is_mark) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            try:
                answer = await self._request(method, path, **told)
            except RestFailure as failure:
                result = wire.result_of(failure)
                if result.error_kind is SendErrorKind.RATE_LIMITED:
                    turn.refused(result.retry_after_ms)
                return result
        self._said()
        shown = answer.get("id") if isinstance(answer, dict) else None
        return SendResult.sent(shown if isinstance(shown, str) else told.get("message_id"))

    def _words(self, content: str) -> str | SendResult:
        """Return a text as Discord shows it, or why it cannot be sent."""
        limit = self.capabilities.limit
        if len(content) > limit:
            return SendResult.failed(SendErrorKind.TOO_LONG, f"Discord accepts at most {limit} characters")
        if not content.strip():
            return SendResult.failed(SendErrorKind.BAD_FORMAT, "Discord accepts no empty message")
        return wire.marked(content, limit)

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message; see the base."""
        words = self._words(content)
        if isinstance(words, SendResult):
            return words
        body = wire.body_of(words, nonce=_nonce(metadata), reply_to=reply_to)
        return await self._say("POST", _MESSAGES, metadata, channel_id=_channel(chat_id, metadata), json=body)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace a sent message; buttons stay."""
        words = self._words(content)
        if isinstance(words, SendResult):
            return words
        body: Json = {"content": words, "allowed_mentions": wire.MENTIONS}
        channel = _channel(chat_id, metadata)
        return await self._say(
            "PATCH", _MESSAGE, metadata, channel_id=channel, message_id=message_id, json=body
        )

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a sent message."""
        channel = _channel(chat_id, metadata)
        return await self._say("DELETE", _MESSAGE, channel_id=channel, message_id=message_id)

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show for ten seconds that an answer is being written; failures are ignored."""
        await self._say("POST", "/channels/{channel_id}/typing", channel_id=_channel(chat_id, metadata))

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Add our reaction to a message, or take it away."""
        channel, method = _channel(chat_id, metadata), "DELETE" if takes_back else "PUT"
        return await self._say(method, _REACTION, channel_id=channel, message_id=message_id, emoji="👀")

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send a file, with words if there are some."""
        words = self._words(caption) if caption and caption.strip() else ""
        if isinstance(words, SendResult):
            return words
        body = wire.body_of(words, nonce=_nonce(metadata))
        channel_id = _channel(chat_id, metadata)
        async with self._file_turn:
            form = wire.form_of(body, attachment, await data.whole())
            return await self._say("POST", _MESSAGES, metadata, channel_id=channel_id, form=form)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a file that came in, from Discord's own file server only.

        Raises:
            TooLarge, ServerUnavailable: see the base.
        """
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"the file exceeds {max_bytes} bytes", value=attachment.size)
        if _origin(attachment.ref) != _origin(self._options.cdn_url):
            raise ServerUnavailable("the file is not on Discord's file server", remedy="")
        if self._bot is None:
            raise ServerUnavailable("not connected to Discord", remedy="")
        async with aclosing(self._bot.fetch(attachment.ref, max_bytes=max_bytes)) as pieces:
            async for piece in pieces:
                yield piece

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Ask with buttons; with more of them than Discord shows, the text lists the possible answers."""
        components, words = wire.components_of(card), self._words(card.text)
        if components is None:
            return await super().send_card(chat_id, card, metadata)
        if isinstance(words, SendResult):
            return words
        body = wire.body_of(words, nonce=_nonce(metadata)) | {"components": components}
        return await self._say("POST", _MESSAGES, metadata, channel_id=_channel(chat_id, metadata), json=body)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a card as it stands now, its buttons included."""
        words = self._words(card.text)
        if isinstance(words, SendResult):
            return words
        body: Json = {
            "content": words,
            "allowed_mentions": wire.MENTIONS,
            "components": wire.components_of(card) or [],
        }
        channel = _channel(chat_id, metadata)
        return await self._say(
            "PATCH", _MESSAGE, metadata, channel_id=channel, message_id=message_id, json=body
        )


def _channel(chat_id: str, metadata: Metadata | None) -> str:
    """Return the channel of a message: a thread is a separate channel."""
    thread = (metadata or {}).get("thread_id")
    return str(thread) if thread else chat_id


def _nonce(metadata: Metadata | None) -> str:
    """Return a nonce that makes repetitions harmless, including the library's own retries."""
    key = (metadata or {}).get("dedupe_key")
    return wire.nonce_of(str(key)) if key else secrets.token_hex(wire.LONGEST_NONCE // 2)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return an address's scheme, host and port; empty for an address with a user name."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", None, None
    return ("", None, None) if "@" in parts.netloc else (parts.scheme, parts.hostname, port)
