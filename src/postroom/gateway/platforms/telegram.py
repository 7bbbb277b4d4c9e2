"""Telegram: one bot, by long polling or by a webhook.

    poll      getUpdates(offset) ──▶ each update in turn: kept ──▶ offset moves past it ──▶ getUpdates(offset)
    webhook   POST, secret in a header ──▶ kept ──▶ 200

`TelegramOptions` is the table [platforms.telegram]. With a webhook its `api_key` is the secret that Telegram
sends with each update.

Telegram has no key that makes a repeated send harmless, and tells bots nothing of deleted messages. A command
without a bot's name is taken as meant for us, in groups too; one with another bot's name is passed over.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeVar

from msgspec import Meta

from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, CredentialRefused, ServerUnavailable, TooLarge
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.gateway.capabilities import ChannelCapabilities, LengthUnit, Rate, RateLimits
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import ALL_MEDIA, Attachment, Card, SendErrorKind, SendResult
from postroom.gateway.platforms import telegram_wire as wire
from postroom.gateway.platforms.base import TOO_OFTEN, BasePlatformAdapter, Metadata
from postroom.gateway.platforms.http_adapter import bounded_body
from postroom.gateway.platforms.options import Proxy, refuse_address, secret_remedy
from postroom.gateway.platforms.telegram_markdown import markdown_v2
from postroom.gateway.platforms.telegram_wire import Answer, failed_call, mended, unreachable
from postroom.gateway.session import Platform, SessionSource

if TYPE_CHECKING:
    from postroom.gateway.platforms.telegram_api import File, TelegramApi


import hmac
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from postroom.concurrency import Tasks
from postroom.gateway.events import ButtonPress
from postroom.gateway.platforms.base import AdapterState
from postroom.gateway.platforms.telegram_wire import (
    ALLOWED_UPDATES,
    Me,
    Moved,
    read_update,
    update_id_of,
)
from postroom.log import get_logger

if TYPE_CHECKING:
    from postroom.gateway.platforms.telegram_api import TelegramApi


import re

T = TypeVar("T")
_TOKEN: Final = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,120}")
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")


class TelegramOptions(PlatformConfig, frozen=True, kw_only=True):
    """The table [platforms.telegram]. The token is the bot's."""

    ALSO: ClassVar = {"webhook_secret": "api_key"}
    base_url: str = "https://api.telegram.org"
    """The address of the Bot API."""
    webhook_url: str | None = None
    """The public address of `/channels/telegram`, which Telegram calls; None: long polling."""
    delete_webhook: bool = False
    """Whether long polling removes a webhook that another program set."""
    poll_seconds: Annotated[int, Meta(ge=1, le=50)] = 30
    """How long Telegram holds a poll open while nothing is new."""
    timeout_ms: Annotated[int, Meta(ge=1, le=300_000)] = 30_000
    """How long a call may stay without a sign of life."""
    proxy: Proxy | None = None
    """An HTTP proxy on the way to Telegram."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url, plain=True)
        if self.webhook_url is not None:
            refuse_address("webhook_url", self.webhook_url, plain=True)
            if not _SECRET.fullmatch(self.api_key or ""):
                raise ConfigError(
                    "the webhook has no secret, or one that Telegram does not send",
                    remedy=secret_remedy("webhook_secret", "1 to 256 letters, digits, _ or -"),
                )


def token_of(config: PlatformConfig) -> str:
    """Return the bot's token.

    Raises:
        ConfigError: there is none, or it has not the form of one; it is not shown.
    """
    if not config.token:
        raise ConfigError(
            "telegram has no token",
            remedy=secret_remedy("token", "the token from @BotFather in Telegram"),
        )
    if not _TOKEN.fullmatch(config.token):
        raise refused_token("it does not look like 123456:ABC-DEF")
    return config.token


def refused_token(why: str) -> CredentialRefused:
    """Return that the token is none, or not valid any more."""
    return CredentialRefused(
        f"telegram's token is not valid: {why}",
        remedy=secret_remedy("token", "the token from @BotFather in Telegram"),
    )


WEBHOOK_PATH: Final = "/telegram"
SECRET_HEADER: Final = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the name of a header
LARGEST_UPDATE: Final = 1024 * 1024
LONGEST_NOTE: Final = 200
LOOK_EVERY_MS: Final = 300_000
"""How often it is looked whether the webhook is still ours."""

_SHORTEST_POLL_MS: Final = 500
_END_SECONDS: Final = 10.0
_BODY_SECONDS: Final = 15.0
_LOG = get_logger(__name__)


LONGEST_CAPTION: Final = 1_024
SEEN: Final = "👀"
SHORT_TEXT: Final = 256
"""Characters up to which a text is formatted on the event loop."""


class TelegramAdapter(BasePlatformAdapter):
    """One bot at Telegram."""

    platform: ClassVar[Platform] = Platform.TELEGRAM
    options: ClassVar = TelegramOptions
    capabilities: ClassVar[ChannelCapabilities] = ChannelCapabilities(
        # 4096 after formatting. Only private chats know drafts.
        limit=4_096,
        unit=LengthUnit.UTF16,
        edits=True,
        threads=True,
        typing=True,
        reactions=True,
        media=ALL_MEDIA,
        # core.telegram.org/bots/faq: one a second in a chat, 20 a minute in a group, some 30 a second in all.
        # Of reactions it says nothing: our own limit, so that a refusal of one quietens no answers.
        rates=RateLimits(
            bot=Rate(30, 1_000),
            chat=Rate(1, 1_000),
            group=Rate(20, 60_000),
            methods={"setMessageReaction": Rate(10, 1_000)},
        ),
    )

    def __init__(
        self,
        config: TelegramOptions,
        *,
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._api: TelegramApi | None = None
        self._options = config
        self._moved: dict[str, str] = {}
        """The id that each group has now which became a supergroup since the start."""
        self._me: Me | None = None
        self._offset: int | None = None
        """The first update that Telegram has not been told we have."""

    @property
    def account(self) -> str:
        """The bot's id; known when `connect` has returned."""
        return "default" if self._me is None else str(self._me.bot_id)

    def lock_identity(self) -> str | None:
        """Return the token, for only one may poll with it; None with a webhook."""
        return None if self._options.webhook_url else self.config.token

    def routes(self) -> Sequence[BaseRoute]:
        """Return the webhook's route, where one is set."""
        if self._options.webhook_url is None:
            return ()
        return (Route(WEBHOOK_PATH, self._webhook, methods=["POST"]),)

    # Its life.

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Check the token and begin to receive."""
        token = token_of(self.config)
        await self.disconnect()
        self.liveness.state = AdapterState.CONNECTING
        async with AsyncExitStack() as undo:
            undo.callback(setattr, self.liveness, "state", AdapterState.STOPPED)
            api = await asyncio.to_thread(_client, self._options, token)
            undo.push_async_callback(api.close)
            self._me = await self._who_we_are(api)
            await (self._set_webhook(api) if self._options.webhook_url else self._make_way(api))
            undo.pop_all()
        self._api = api
        self._tasks = Tasks(f"channel {self.platform.value}")
        self._connected()
        self.liveness.retryable = True
        is_called = self._options.webhook_url is not None
        work = self._receive(self._look, after_ms=LOOK_EVERY_MS) if is_called else self._receive(self._poll)
        self._tasks.start(work, name="receive")
        if self.commands:
            self._tasks.start(self._show_menu(api), name="show the menu of commands")

    async def _show_menu(self, api: "TelegramApi") -> None:
        """Set the menu of commands; a refusal leaves the menu as it was."""
        listed: Json = [{"command": name, "description": words[:256]} for name, words in self.commands]
        answer = await api.call("setMyCommands", {"commands": listed})
        if answer.kind is not None:
            _LOG.info("telegram.no_menu", reason=answer.error)

    async def disconnect(self) -> None:
        """End everything; harmless when done twice."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._tasks.close()
        except TimeoutError:
            _LOG.warning("channel.slow_to_end", platform=self.platform.value)
        api, self._api = self._api, None
        if api is not None:
            await api.close()
        if self.liveness.state is not AdapterState.FAILED:
            self.liveness.state = AdapterState.STOPPED

    async def _who_we_are(self, api: "TelegramApi") -> Me:
        told = _checked(await api.call("getMe", {}))
        bot_id, name = (told.get("id"), told.get("username")) if isinstance(told, dict) else (None, None)
        if not isinstance(bot_id, int) or not isinstance(name, str):
            raise ConfigError(
                "telegram's base_url is not a Bot API",
                remedy="set base_url to a Bot API, or remove it",
            )
        return Me(bot_id=bot_id, username=name)

    async def _make_way(self, api: "TelegramApi") -> None:
        """Make sure that polls are answered."""
        told = _checked(await api.call("getWebhookInfo", {}))
        if isinstance(told, dict) and told.get("url"):
            if not self._options.delete_webhook:
                raise ConfigError(
                    "this bot has a webhook in Telegram, so Telegram rejects polls",
                    remedy="set delete_webhook to true to remove the webhook, or webhook_url to use it",
                )
            _checked(await api.call("deleteWebhook", {"drop_pending_updates": False}))

    async def _set_webhook(self, api: "TelegramApi") -> None:
        """Tell Telegram where to call."""
        answer = await api.call(
            "setWebhook",
            {
                "url": self._options.webhook_url,
                "secret_token": self.config.api_key,
                "allowed_updates": ALLOWED_UPDATES,
            },
        )
        if answer.is_telegram and answer.status == 400:
            raise ConfigError(
                f"telegram rejected the webhook: {answer.error}",
                remedy="set webhook_url to an https URL that Telegram can reach",
            )
        _checked(answer)

    # What comes in.

    async def _poll(self, _: int) -> int:
        """Ask for updates once and take them in; return the pause before the next poll."""
        wanted = {"timeout": self._options.poll_seconds, "allowed_updates": ALLOWED_UPDATES}
        if self._offset is not None:
            wanted["offset"] = self._offset
        began, silence_ms = self._clock.now(), self._options.poll_seconds * 1_000
        updates = await self._asked("getUpdates", wanted, list, more_silence_ms=silence_ms)
        # An empty answer that comes at once, or one whose updates have no number, would come again at once.
        moved = not updates and self._clock.now() - began >= _SHORTEST_POLL_MS
        for update in updates:
            await self.take_in(update, partial(self._take, update))
            if (update_id := update_id_of(update)) is not None:
                self._offset, moved = update_id + 1, True
        return 0 if moved else _SHORTEST_POLL_MS

    async def _look(self, _: int) -> int:
        """Check that Telegram still calls us; return the pause before the next look."""
        told = await self._asked("getWebhookInfo", {}, dict)
        if told.get("url") != self._options.webhook_url:
            self._fail(
                "conflict",
                "the bot's webhook was removed or changed: check which other program uses its token",
                retryable=True,
            )
        return LOOK_EVERY_MS

    async def _asked(
        self, method: str, fields: dict[str, Json], kind: type[T], *, more_silence_ms: int = 0
    ) -> T:
        """Return the result of a call of the receiving side, which must have this type.

        Raises:
            CredentialRefused: The token is not valid any more.
            ServerUnavailable: Telegram did not give what was asked for.
        """
        if self._api is None:
            raise unreachable("the channel is not connected")
        answer = await self._api.call(method, fields, more_silence_ms=more_silence_ms)
        if answer.is_unauthorized:
            raise refused_token(answer.error)
        details: dict[str, object] = {"retry_after_ms": answer.retry_after_ms}
        if answer.is_conflict:
            raise ServerUnavailable(
                f"another program receives for this bot: {answer.error}; stop that program, or "
                "remove the webhook (delete_webhook)",
                remedy="",
                details={**details, "channel": "conflict"},
            )
        if answer.kind is not None or not isinstance(answer.result, kind):
            why = answer.error or f"Telegram's answer to {method} has another form"
            raise ServerUnavailable(why, remedy="postroom retries", details=details)
        self._heard()
        return answer.result

    async def _take(self, update: Json) -> None:
        if self._me is None:
            raise unreachable("the channel is not connected")
        found = read_update(update, self._me)
        if isinstance(found, ButtonPress):
            await self._pressed(found)
        elif isinstance(found, Moved):
            await self._follow(found)
        elif found is not None and not found.edited:
            await self.handle_message(found.event)
        elif found is not None and self._inbound is not None:
            await self._inbound.edited(found.event)

    async def _follow(self, moved: Moved) -> None:
        """Go on in the group that a group has become."""
        self._moved[moved.source.chat_id] = moved.chat_id
        if self._inbound is not None:
            await self._inbound.moved(moved.source, moved.chat_id)

    async def _pressed(self, press: ButtonPress) -> None:
        if self._inbound is None:
            return
        note = mended(await self._inbound.pressed(press))
        shown = note[: self.capabilities.unit.fitting(note, 0, LONGEST_NOTE)]
        fields = {"callback_query_id": press.press_id, "text": shown}
        # What was pressed is kept; messages that wait behind it do not wait for the note too.
        if not self._tasks.closed:
            self._tasks.start(self._call("answerCallbackQuery", fields), name="answer a press")

    async def _webhook(self, request: Request) -> Response:
        """Take an update that Telegram sends; 200 only when it was kept."""
        given = request.headers.get(SECRET_HEADER, "").encode()
        if not hmac.compare_digest(given, (self.config.api_key or "").encode()):
            self._refuse("wrong_secret")
            return Response(status_code=401)
        if not self._receives():
            return Response(status_code=503)
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await bounded_body(request, LARGEST_UPDATE)
        except (ClientDisconnect, TimeoutError):
            return Response(status_code=408)
        if body is None:
            self._refuse("too_large")
            return Response(status_code=413)
        if not self._receives():
            return Response(status_code=503)
        self._heard()
        try:
            update = json.loads(body)
        except (ValueError, RecursionError):
            update = body.decode("utf-8", "replace")  # no update, which becomes a dead letter
        kept = await self.is_taken(partial(self.take_in, update, partial(self._take, update)))
        return Response(status_code=200 if kept else 503)

    def _receives(self) -> bool:
        return self._me is not None and not self._tasks.closed

    def _refuse(self, code: str, **more: object) -> None:
        self.liveness.refused += 1
        _LOG.warning("channel.refused", platform=self.platform.value, code=code, **more)

    # What it says.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Say something."""
        fields = {**wire.place(chat_id, metadata), **wire.answering(reply_to)}
        return await self._say("sendMessage", fields, content, metadata=metadata)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace what was said; that it reads so already is no failure."""
        return await self._edit(chat_id, message_id, content, {}, metadata)

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Take back what was said."""
        number = wire.number_of(message_id)
        if number is None:
            return _unusable("the id of a message must be a number")
        fields = {**wire.place(chat_id, None), "message_id": number}
        return self._result(await self._call("deleteMessage", fields), message_id)

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show that an answer is being written."""
        await self._call("sendChatAction", {**wire.place(chat_id, metadata), "action": "typing"})

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Set the one reaction that a bot has on a message, or none."""
        number = wire.number_of(message_id)
        if number is None:
            return _unusable("the id of a message must be a number")
        marks: list[Json] = [] if takes_back else [{"type": "emoji", "emoji": SEEN}]
        fields = {**wire.place(chat_id, None), "message_id": number, "reaction": marks}
        return self._result(await self._call("setMessageReaction", fields))

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send a file; a caption has at most 1,024 UTF-16 units."""
        method, field = wire.media_method(attachment.kind, has_caption=bool(caption))
        fields = {**wire.place(chat_id, metadata), "file": field}
        file = wire.file_of(attachment, data)
        if caption:
            return await self._say(method, fields, caption, file=file, metadata=metadata)
        return self._result(await self._call(method, fields, file=file, metadata=metadata))

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a file that came in."""
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"the file exceeds {max_bytes} bytes", value=attachment.size)
        answer = await self._call("getFile", {"file_id": attachment.ref})
        if answer.kind is SendErrorKind.TOO_LONG:
            raise TooLarge("the file exceeds Telegram's limit for bots", value=attachment.size)
        path = answer.result.get("file_path") if isinstance(answer.result, dict) else None
        if answer.kind is not None:
            raise failed_call(answer)
        if self._api is None or not isinstance(path, str):
            raise unreachable("Telegram has no such file")
        async with aclosing(self._api.download(path, max_bytes=max_bytes)) as pieces:
            async for piece in pieces:
                yield piece

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Ask with buttons below the text."""
        buttons = wire.keyboard(card)
        if buttons is None:
            return _unusable("the data of a button must have 1 to 64 bytes")
        fields = {**wire.place(chat_id, metadata), **buttons}
        return await self._say("sendMessage", fields, card.text, metadata=metadata)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a card as it stands now; without buttons it loses those it had."""
        buttons = wire.keyboard(card)
        if buttons is None:
            return _unusable("the data of a button must have 1 to 64 bytes")
        return await self._edit(chat_id, message_id, card.text, buttons, metadata)

    async def _edit(
        self, chat_id: str, message_id: str, text: str, more: dict[str, Json], metadata: Metadata | None
    ) -> SendResult:
        number = wire.number_of(message_id)
        if number is None:
            return _unusable("the id of a message must be a number")
        fields = {**wire.place(chat_id, None), "message_id": number, **more}
        return await self._say("editMessageText", fields, text, message_id=message_id, metadata=metadata)

    async def _say(
        self,
        method: str,
        fields: dict[str, Json],
        text: str,
        *,
        file: "File | None" = None,
        message_id: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Say a text formatted; where its marks are refused, as it stands."""
        name, limit = ("caption", LONGEST_CAPTION) if file else ("text", self.capabilities.limit)
        plain = mended(text)
        if self.capabilities.unit.measure(plain) > limit:
            return SendResult.failed(
                SendErrorKind.TOO_LONG, f"a {name} can have at most {limit} UTF-16 units"
            )
        is_short = len(plain) <= SHORT_TEXT
        marked = markdown_v2(plain) if is_short else await asyncio.to_thread(markdown_v2, plain)
        if marked is not None:
            shown = {**fields, name: marked, "parse_mode": "MarkdownV2"}
            result = self._result(await self._call(method, shown, file=file, metadata=metadata), message_id)
            if result.error_kind not in (SendErrorKind.BAD_FORMAT, SendErrorKind.TOO_LONG):
                return result
        answer = await self._call(method, {**fields, name: plain}, file=file, metadata=metadata)
        return self._result(answer, message_id)

    async def _call(
        self,
        method: str,
        fields: dict[str, Json],
        *,
        file: "File | None" = None,
        metadata: Metadata | None = None,
    ) -> Answer:
        """Call a method when it is its turn; in a group that moved, where it is now."""
        place = str(fields.get("chat_id", ""))
        if (now_at := self._moved.get(place)) is not None:
            fields = {**fields, "chat_id": int(now_at)}
        answer = await self._call_in_turn(method, fields, file, metadata)
        if answer.migrate_to is None or self._me is None or now_at is not None:
            return answer
        source = SessionSource(platform=self.platform, chat_id=place, chat_type="group", account=self.account)
        moved = Moved(source=source, chat_id=str(answer.migrate_to))
        self._moved[place] = moved.chat_id
        if not self._tasks.closed:
            self._tasks.start(self._follow(moved), name="follow a group")
        return await self._call(method, fields, file=file, metadata=metadata)

    async def _call_in_turn(
        self, method: str, fields: dict[str, Json], file: "File | None", metadata: Metadata | None
    ) -> Answer:
        gives_way = method in ("sendChatAction", "setMessageReaction")
        says = method.startswith(("send", "edit")) and not gives_way
        chat = str(fields["chat_id"]) if says else None
        is_group = chat is not None and chat.startswith(("-", "@"))
        async with self._turn(method, chat, metadata, is_group=is_group, gives_way=gives_way) as turn:
            if turn.wait_ms:
                return Answer(kind=SendErrorKind.RATE_LIMITED, error=TOO_OFTEN, retry_after_ms=turn.wait_ms)
            if self._api is None:
                return Answer(kind=SendErrorKind.TRANSIENT, error="telegram is not connected")
            answer = await self._api.call(method, fields, file=file)
            if answer.kind is SendErrorKind.RATE_LIMITED:
                turn.refused(answer.retry_after_ms)
            return answer

    def _result(self, answer: Answer, message_id: str | None = None) -> SendResult:
        if answer.kind is not None and not answer.says("message is not modified"):
            return SendResult.failed(answer.kind, answer.error, retry_after_ms=answer.retry_after_ms)
        self._said()
        told = answer.result.get("message_id") if isinstance(answer.result, dict) else None
        return SendResult.sent(message_id if told is None else str(told))


def _client(options: TelegramOptions, token: str) -> "TelegramApi":
    """Return what calls Telegram; off the event loop, for it reads files, the library's among them.

    Raises:
        MissingExtra: the library is not installed.
    """
    from postroom.gateway.platforms.telegram_api import TelegramApi

    return TelegramApi(options.base_url, token, silence_ms=options.timeout_ms, proxy=options.proxy)


def _checked(answer: Answer) -> Json:
    """Return what a call before the first poll gave.

    Raises:
        ConfigError: the token is refused.
        ServerUnavailable: it could not be done now.
    """
    if answer.is_unauthorized:
        raise refused_token(answer.error)
    if answer.kind is not None:
        raise failed_call(answer)
    return answer.result


def _unusable(why: str) -> SendResult:
    return SendResult.failed(SendErrorKind.BAD_FORMAT, why)
