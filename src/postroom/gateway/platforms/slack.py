"""Slack: Socket Mode (with an app token) or signed HTTP requests (with a signing secret), and the Web API.

`SlackOptions.token` is the bot's token (`xoxb-…`), `api_key` the app's (`xapp-…`, scope connections:write).
With the app's token we open a web socket; without it Slack calls `/slack`, and `signing_secret` is needed.

Slack has threads in place of answers: `reply_to` begins one if `reply_in_threads` is set, and `thread_id` is
the thread's first message. `metadata["dedupe_key"]` becomes `client_msg_id`, with which Slack accepts a
message once. Slack documents the errors of this argument, but not the argument itself, so a lost answer still
counts as unknown.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from msgspec import Meta
from starlette.routing import BaseRoute, Route

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import InvalidArgument, ServerUnavailable
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json, storable
from postroom.gateway.capabilities import ChannelCapabilities, Rate, RateLimits
from postroom.gateway.events import (
    FILES,
    Attachment,
    ButtonPress,
    Card,
    MessageEvent,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.platforms.base import TOO_OFTEN, AdapterState, BasePlatformAdapter, Metadata
from postroom.gateway.platforms.options import Proxy, refuse_address, secret_remedy
from postroom.gateway.platforms.slack_http import SlackReceiver
from postroom.gateway.platforms.slack_outgoing import (
    AS_WANTED,
    LONGEST_TEXT,
    TO_REACT,
    TOKEN_REFUSED,
    UNREACHABLE,
    Answer,
    blocks_fit,
    card_body,
    check_scopes,
    converted,
    deduped,
    edit_body,
    in_thread,
    off_loop,
    refuse,
    refused,
    result_of,
    storable_card,
)
from postroom.gateway.platforms.slack_text import escape
from postroom.gateway.platforms.slack_wire import (
    Bot,
    Deletion,
    Edit,
    Malformed,
    NewMessage,
    is_ts,
    read,
    said_in_thread,
)
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

if TYPE_CHECKING:
    from postroom.gateway.platforms.slack_api import Network, SlackApi
    from postroom.gateway.platforms.slack_socket import SlackSocket


from typing import TYPE_CHECKING

from postroom.contracts.errors import ConfigError
from postroom.contracts.tables import Secret
from postroom.gateway.platforms.slack_wire import Rules

if TYPE_CHECKING:
    from postroom.gateway.platforms.slack_api import SlackApi


class SlackOptions(Rules, frozen=True, kw_only=True):
    """The table [platforms.slack]. The token is the bot's, the key that of the app."""

    ALSO: ClassVar = {"app_token": "api_key"}
    signing_secret: Secret | None = None
    """Checks the requests that Slack sends; without it there is no route."""
    base_url: str = "https://slack.com/api"
    """The address of the Web API; plain http on loopback alone."""
    unfurl: bool = False
    """Whether Slack shows previews of the addresses in our messages."""
    proxy: Proxy | None = None
    """An HTTP proxy on the way to Slack."""
    timeout_ms: Annotated[int, Meta(ge=1, le=600_000)] = 30_000
    """How long a call waits."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url)
        token, app_token = self.token, self.api_key
        if not token or not token.strip() or token.startswith("xapp-"):
            raise ConfigError(
                "Slack requires a bot token",
                remedy=secret_remedy("token", "the token that begins with xoxb-"),
            )
        if app_token is not None and (not app_token.strip() or app_token.startswith("xoxb-")):
            raise ConfigError(
                "this is not an app token",
                remedy=secret_remedy("app_token", "the token that begins with xapp-"),
            )
        if app_token is None and self.signing_secret is None:
            raise ConfigError(
                "Slack has no way to reach this server",
                remedy="set `app_token_env` or `app_token_file` (Socket Mode), or `signing_secret_env` or"
                " `signing_secret_file` (HTTP)",
            )

    def api(self, token: str) -> "SlackApi":
        """Return the Web API for the bot of a token.

        It loads libraries and certificates, so that it belongs outside of the event loop.

        Raises:
            MissingExtra: a library is not installed.
        """
        from postroom.gateway.platforms import slack_socket  # noqa: F401 - to be loaded here and not later
        from postroom.gateway.platforms.slack_api import Network, SlackApi, tls_context

        network = Network(
            base_url=self.base_url,
            timeout_ms=self.timeout_ms,
            proxy=self.proxy,
            tls=tls_context() if self.base_url.startswith("https:") else None,
        )
        return SlackApi(network, token)


MOST_IN_THREAD: Final = 100
"""Messages of a thread that a mention brings: the first one and the newest."""
THREAD_PAGE: Final = 200
"""Messages that one page of a thread has at most; Slack gives the oldest first, and some apps 15 of them."""
MOST_THREAD_PAGES: Final = 5
MOST_THREADS: Final = 10_000
NOTE: Final = 1_000
"""Characters of a note to one person."""

Keep = Callable[[Json | bytes, Callable[[], Awaitable[None]]], Awaitable[None]]
"""`take_in`, or `take_until_kept`."""
_LOG = get_logger(__name__)


class SlackAdapter(BasePlatformAdapter):
    """Speaks with one Slack workspace as one bot."""

    platform = Platform.SLACK
    options = SlackOptions
    capabilities = ChannelCapabilities(
        # Cut by the platform at 40,000. Edits share a rate of about fifty a minute.
        limit=39_000,
        edits=True,
        threads=True,
        reactions=True,
        media=FILES,
        min_edit_interval_ms=1_200,
        # docs.slack.dev/apis/web-api/rate-limits: one message a second in a channel, and tiers of methods.
        rates=RateLimits(
            chat=Rate(1, 1_000),
            methods={
                "chat.update": Rate(50, 60_000),
                "chat.delete": Rate(50, 60_000),
                "reactions.add": Rate(50, 60_000),
                "reactions.remove": Rate(20, 60_000),
                "files.completeUploadExternal": Rate(100, 60_000),
            },
        ),
    )

    def __init__(
        self, config: SlackOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = config
        self._bot: Bot | None = None
        self._api: SlackApi | None = None
        self._socket: SlackSocket | None = None
        self._receiver: SlackReceiver | None = None
        self._threads_read: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Channel and first message of the threads that an agent knows."""
        if self._options.signing_secret:
            self._receiver = SlackReceiver(
                self._options.signing_secret,
                self._clock,
                is_taken=self._is_taken,
                take=partial(self._take, keep=self.take_in),
                take_unreadable=partial(self._take_unreadable, keep=self.take_in),
                refused=self._refused,
            )

    @property
    def account(self) -> str:
        """The team's id and the bot's; known when `connect` has returned."""
        return "default" if self._bot is None else self._bot.account

    def lock_identity(self) -> str | None:
        """Return the app's token: Slack shares events out among an app's sockets."""
        return self.config.api_key

    def routes(self) -> Sequence[BaseRoute]:
        """Return the one address for events, slash commands and interactivity."""
        return () if self._receiver is None else (Route("/slack", self._receiver.answer, methods=["POST"]),)

    # Its life.

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Check the tokens and their scopes, then receive; see the base class."""
        await self.disconnect()
        if self._tasks.closed:
            self._tasks = Tasks(f"channel {self.platform.value}")
        self.liveness.state = AdapterState.RECONNECTING if is_reconnect else AdapterState.CONNECTING
        self.liveness.error_code = self.liveness.error = None
        self.liveness.retryable = True
        connected = False
        try:
            self._api = await asyncio.to_thread(self._options.api, self.config.token or "")
            self._bot = await self._who_we_are()
            if self.config.api_key:
                self._socket = self._new_socket(self._api.network)
                await self._socket.open()
            self.liveness.state = AdapterState.CONNECTED
            connected = True
        finally:
            if not connected:
                await self.disconnect()
        self._heard()

    async def disconnect(self) -> None:
        """End everything within some seconds; harmless when done twice."""
        self.liveness.state = AdapterState.STOPPED
        await self._end_receiving()
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    async def _end_receiving(self) -> None:
        await self._tasks.close()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _who_we_are(self) -> Bot:
        answer = await self._called("auth.test", {}, form=True)
        refuse(answer, "bot token", secret_remedy("token", "the token under OAuth & Permissions"))
        user, team = answer.word("user_id"), answer.word("team_id")
        if not user or not team:
            raise ServerUnavailable("Slack did not identify the bot", remedy="")
        check_scopes(answer.scopes)
        self.may_react = answer.scopes is None or TO_REACT in answer.scopes
        return Bot(team_id=team, user_id=user, bot_id=answer.word("bot_id") or None)

    def _new_socket(self, network: "Network") -> "SlackSocket":
        from postroom.gateway.platforms.slack_socket import Dialing, Hooks, SlackSocket

        hooks = Hooks(
            address=self._socket_address,
            take=partial(self._take, keep=self.take_until_kept),
            heard=self._heard,
            take_unreadable=partial(self._take_unreadable, keep=self.take_until_kept),
            stands=self._stands,
            failed=self._failed,
        )
        dialing = Dialing(tls=network.tls, proxy=network.proxy)
        return SlackSocket(hooks, tasks=self._tasks, timer=self._timer, dialing=dialing)

    async def _socket_address(self) -> str:
        from postroom.gateway.platforms.slack_api import is_of_platform

        await self._until_ours()
        answer = await self._called("apps.connections.open", {}, form=True, token=self.config.api_key)
        refuse(answer, "app token", secret_remedy("app_token", "a token with the scope connections:write"))
        address = answer.word("url")
        if not is_of_platform(address, self._options.base_url, any_port=True):
            raise ServerUnavailable("Slack returned a socket address outside Slack", remedy="")
        return address

    def _stands(self, state: AdapterState, why: str) -> None:
        self.liveness.state = state
        self.liveness.error_code, self.liveness.error = ("unreachable", why) if why else (None, None)

    def _failed(self, code: str, message: str, retryable: bool) -> None:
        _LOG.error("slack.failed", code=code, why=message)
        self._fail(code, message, retryable=retryable)

    # What comes in.

    async def _is_taken(self, work: Callable[[], Awaitable[None]]) -> bool:
        return self.liveness.is_reachable and await self.is_taken(work)

    def _refused(self, why: str) -> None:
        self.liveness.refused += 1
        _LOG.warning("slack.refused", what="request", why=why)

    async def _take_unreadable(self, raw: bytes, why: str, *, keep: Keep) -> None:
        """Make something that Slack sent a dead letter."""

        async def read() -> None:
            raise Malformed(why)

        await keep(raw, read)

    async def _take(self, kind: str, payload: Json, *, keep: Keep) -> None:
        """Take an envelope in by `take_in` or `take_until_kept`."""
        if self._bot is not None:
            told = payload if isinstance(payload, dict) else {"payload": payload}
            await keep({"kind": kind, **told}, partial(self._hand_over, kind, payload, self._bot))

    async def _hand_over(self, kind: str, payload: Json, bot: Bot) -> None:
        update = read(kind, payload, bot, self._options)
        if update is None:
            return
        self._heard()
        if isinstance(update, NewMessage):
            await self._bring_thread(update.event)
            await self.handle_message(update.event)
            self._note_thread(update.event.source)
        elif self._inbound is None:
            return
        elif isinstance(update, Edit):
            await self._inbound.edited(update.event)
        elif isinstance(update, Deletion):
            await self._inbound.deleted(update.source, update.message_id)
        elif isinstance(update, ButtonPress):
            note = await self._inbound.pressed(update)
            if note.strip():
                self._tasks.start(self._show_note(update, note), name="note")

    async def _bring_thread(self, event: MessageEvent) -> None:
        """Add earlier words of its thread to an event that mentions us below other people's words."""
        source, root = event.source, event.metadata.get("thread_root")
        if source is None or root is None or root == event.message_id or not event.addressed:
            return
        if (source.chat_id, root) in self._threads_read or event.is_command():
            return
        found = {root: ""}  # each page of Slack's answer begins with the first message of the thread
        asked = {"channel": source.chat_id, "ts": root, "latest": event.message_id, "limit": THREAD_PAGE}
        is_whole = False
        for _ in range(MOST_THREAD_PAGES):
            answer = await self._called("conversations.replies", asked, form=True)
            page, following = answer.body.get("messages"), answer.body.get("response_metadata")
            if answer.refusal is not None or not isinstance(page, list):
                _LOG.info(
                    "slack.thread_not_read", why=None if answer.refusal is None else answer.refusal.code
                )
                break
            found |= {one["ts"]: said_in_thread(one) for one in page if isinstance(one, dict) and "ts" in one}
            cursor = following.get("next_cursor") if isinstance(following, dict) else None
            if not cursor:
                is_whole = not answer.body.get("has_more")
                break
            asked["cursor"] = cursor
        found.pop(event.message_id or "", None)
        first, *others = [words for words in found.values() if words] or [""]
        if not is_whole:
            event.unread += (
                "the later messages of this thread" if first else "the earlier messages of this thread",
            )
        if len(others) >= MOST_IN_THREAD:
            event.unread += ("older messages of this long thread",)
        if first:
            said = [first, *others[1 - MOST_IN_THREAD :]]
            event.metadata["earlier"] = {"said": said, "mark": token_hex(4)}

    def _note_thread(self, source: SessionSource | None) -> None:
        if source is not None and source.thread_id is not None:
            self._threads_read[source.chat_id, source.thread_id] = None
            if len(self._threads_read) > MOST_THREADS:
                self._threads_read.popitem(last=False)

    def remember(self, source: SessionSource, message_id: str) -> None:
        """Take note of a thread whose words an agent has."""
        self._note_thread(source)

    async def _show_note(self, press: ButtonPress, note: str) -> None:
        """Show a note only to the person who pressed."""
        body = {
            "channel": press.source.chat_id,
            "user": press.source.user_id,
            "text": escape(storable(note)[:NOTE]),
            **in_thread(press.source.thread_id),
        }
        answer = await self._called("chat.postEphemeral", body)
        if answer.refusal is not None:
            _LOG.info("slack.note_not_shown", why=answer.refusal.describe())

    # What goes out.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message; see the base class."""
        if not content.strip():
            return SendResult.failed(SendErrorKind.BAD_FORMAT, "the message is empty")
        told = metadata or {}
        body = {
            "channel": chat_id,
            "text": await converted(content),
            "unfurl_links": self._options.unfurl,
            "unfurl_media": self._options.unfurl,
            **self._answering(chat_id, reply_to, told),
            **deduped(told),
        }
        answer = await self._say("chat.postMessage", body, metadata)
        if answer.refusal is not None and answer.refusal.is_of_markup:
            plain = {**body, "text": escape(storable(content)), "mrkdwn": False}
            answer = await self._say("chat.postMessage", plain, metadata)
        return result_of(answer)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace a sent message, including buttons.

        Slack accepts less in an edit than in a message: more than about 12,000 characters are too long.
        """
        if not content.strip():
            return SendResult.failed(SendErrorKind.BAD_FORMAT, "the message is empty")
        plain = storable(content)
        body = {"channel": chat_id, "ts": message_id, **await off_loop(edit_body, plain, len(plain))}
        answer = await self._say("chat.update", body, metadata)
        if answer.refusal is not None and answer.refusal.is_of_markup:
            answer = await self._say("chat.update", {**body, "text": escape(plain), "blocks": []}, metadata)
        return result_of(answer)

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a sent message."""
        return result_of(await self._say("chat.delete", {"channel": chat_id, "ts": message_id}))

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Mark a message with 👀; without the scope for that no other is tried."""
        method = "reactions.remove" if takes_back else "reactions.add"
        if not is_ts(message_id):
            return SendResult.failed(SendErrorKind.NOT_FOUND, "a command is not a message")
        async with self._turn(method, None, metadata, gives_way=True) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            answer = await self._called(method, {"channel": chat_id, "timestamp": message_id, "name": "eyes"})
            if answer.refusal is not None and answer.refusal.kind is SendErrorKind.RATE_LIMITED:
                turn.refused(answer.refusal.retry_after_ms)
        code = "" if answer.refusal is None else answer.refusal.code
        self.may_react = self.may_react and code != "missing_scope"
        return SendResult.sent() if code in AS_WANTED else result_of(answer)

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Ask with buttons; if Slack refuses them, the text lists the possible answers."""
        told = metadata or {}
        body = {
            "channel": chat_id,
            **await off_loop(card_body, storable_card(card), len(card.text)),
            **self._answering(chat_id, None, told),
            **deduped(told),
        }
        answer = await self._say("chat.postMessage", body, metadata)
        if answer.refusal is not None and answer.refusal.is_of_markup:
            return await super().send_card(chat_id, card, metadata)
        return result_of(answer)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a card as it stands now; without buttons, when it has its answer."""
        shown = await off_loop(card_body, storable_card(card), len(card.text))
        body = {"channel": chat_id, "ts": message_id, **shown}
        answer = await self._say("chat.update", body)
        if answer.refusal is not None and answer.refusal.is_of_markup:
            return await self.edit_message(chat_id, message_id, card.text, metadata)
        return result_of(answer)

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send a file; Slack does not say which message holds it, so that the result has no id."""
        name = storable(attachment.name or "file")[:255]
        asked = {"filename": name, "length": data.size}
        ticket = await self._called("files.getUploadURLExternal", asked, form=True)
        if ticket.refusal is not None or self._api is None:
            return result_of(ticket, nothing_done=True)
        try:
            put = await self._api.upload(ticket.word("upload_url"), data)
        except InvalidArgument as error:
            return SendResult.failed(SendErrorKind.FORBIDDEN, error.message)
        if put.refusal is not None:
            return result_of(put, nothing_done=True)
        body: dict[str, Any] = {
            "files": [{"id": ticket.word("file_id"), "title": name}],
            "channel_id": chat_id,
            **in_thread((metadata or {}).get("thread_id")),
        }
        if caption:
            body["initial_comment"] = await converted(caption)
        answer = await self._say("files.completeUploadExternal", body, metadata)
        return SendResult.sent() if answer.refusal is None else result_of(answer)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a file that came in; see the base class.

        Raises:
            InvalidArgument: it does not lie with Slack; nothing was fetched.
        """
        if self._api is None:
            raise ServerUnavailable("Slack is not connected", remedy="")
        is_page = (attachment.mime or "").startswith("text/html")
        async with aclosing(self._api.fetch(attachment.ref, max_bytes=max_bytes, is_page=is_page)) as pieces:
            async for piece in pieces:
                yield piece

    async def _say(self, method: str, body: Mapping[str, Any], metadata: Metadata | None = None) -> Answer:
        too_long = len(body.get("text", "")) > LONGEST_TEXT  # Slack would cut it off silently
        if too_long or not blocks_fit(body.get("blocks", [])):
            return Answer(refusal=refused("msg_too_long"))
        chat = body.get("channel_id") or (body["channel"] if method == "chat.postMessage" else None)
        async with self._turn(method, chat, metadata) as turn:
            if turn.wait_ms:
                return Answer(refusal=refused("ratelimited", retry_after_ms=turn.wait_ms))
            answer = await self._called(method, body)
            if answer.refusal is None:
                self._said()
            elif answer.refusal.kind is SendErrorKind.RATE_LIMITED:
                turn.refused(answer.refusal.retry_after_ms)
            return answer

    async def _called(
        self, method: str, body: Mapping[str, Any], *, form: bool = False, token: str | None = None
    ) -> Answer:
        """Call the Web API; a bot token that is refused once it was good ends receiving too."""
        if self._api is None:
            return Answer(refusal=refused(UNREACHABLE))
        answer = await self._api.call(method, body, form=form, token=token)
        dead = answer.refusal is not None and answer.refusal.code in TOKEN_REFUSED and token is None
        if dead and self.liveness.is_reachable:
            self._failed("token_refused", "Slack no longer accepts the bot token", False)
            await self._end_receiving()
        return answer

    def _answering(self, chat_id: str, reply_to: str | None, told: Metadata) -> dict[str, str]:
        thread = in_thread(told.get("thread_id"))
        if thread or not self._options.reply_in_threads or chat_id.startswith("D"):
            return thread
        return in_thread(reply_to)
