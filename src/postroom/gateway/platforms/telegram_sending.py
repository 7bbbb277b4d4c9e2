"""What Telegram's adapter says: every method of the platform's contract that goes out."""

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import TooLarge
from postroom.contracts.messages import Json
from postroom.gateway.capabilities import CAPABILITIES, ChannelCapabilities
from postroom.gateway.config import Platform, PlatformConfig
from postroom.gateway.events import Attachment, Card, SendErrorKind, SendResult
from postroom.gateway.platforms import telegram_outgoing as outgoing
from postroom.gateway.platforms.base import BasePlatformAdapter, Metadata
from postroom.gateway.platforms.telegram_answers import Answer, unreachable
from postroom.gateway.platforms.telegram_markdown import markdown_v2
from postroom.gateway.platforms.telegram_wire import chat_info, mended

if TYPE_CHECKING:
    from postroom.gateway.platforms.telegram_api import File, TelegramApi

LONGEST_CAPTION: Final = 1_024
SHORT_TEXT: Final = 256
"""Characters up to which a text is formatted on the event loop."""


class TelegramSending(BasePlatformAdapter):
    """The half of the adapter that says things; it sends while it is connected."""

    platform: ClassVar[Platform] = Platform.TELEGRAM
    capabilities: ClassVar[ChannelCapabilities] = CAPABILITIES["telegram"]

    def __init__(
        self, config: PlatformConfig, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._api: TelegramApi | None = None
        self._quiet_until = 0

    async def send(
        self,
        chat_id: str,
        content: str,
        reply_to: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Say something."""
        fields = {**outgoing.place(chat_id, metadata), **outgoing.answering(reply_to)}
        return await self._say("sendMessage", fields, content)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace what was said; that it reads so already is no failure."""
        return await self._edit(chat_id, message_id, content, {})

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Take back what was said."""
        number = outgoing.number_of(message_id)
        if number is None:
            return _unusable("the id of a message is a number")
        fields = {**outgoing.place(chat_id, None), "message_id": number}
        return self._result(await self._call("deleteMessage", fields), message_id)

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show that an answer is being written; not while Telegram asks for a pause."""
        if self._clock.now() >= self._quiet_until:
            fields = {**outgoing.place(chat_id, metadata), "action": "typing"}
            answer = await self._call("sendChatAction", fields)
            self._quiet_until = self._clock.now() + (answer.retry_after_ms or 0)

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: bytes,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send a file; a caption has at most 1,024 UTF-16 units."""
        method, field = outgoing.media_method(attachment.kind, has_caption=bool(caption))
        fields = {**outgoing.place(chat_id, metadata), "file": field}
        file = outgoing.file_of(attachment, data)
        if caption:
            return await self._say(method, fields, caption, file=file)
        return self._result(await self._call(method, fields, file=file))

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> bytes:
        """Return a file that came in."""
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"the file is larger than {max_bytes} bytes", value=attachment.size)
        answer = await self._call("getFile", {"file_id": attachment.ref})
        if answer.kind is SendErrorKind.TOO_LONG:
            raise TooLarge("the file is larger than Telegram gives to bots", value=attachment.size)
        path = answer.result.get("file_path") if isinstance(answer.result, dict) else None
        if answer.kind is not None or self._api is None or not isinstance(path, str):
            raise unreachable(answer.error or "it has no such file")
        return await self._api.download(path, max_bytes=max_bytes)

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Ask with buttons below the text."""
        buttons = outgoing.keyboard(card)
        if buttons is None:
            return _unusable("a button carries 1 to 64 bytes")
        return await self._say("sendMessage", {**outgoing.place(chat_id, metadata), **buttons}, card.text)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a card as it stands now; without buttons it loses those it had."""
        buttons = outgoing.keyboard(card)
        if buttons is None:
            return _unusable("a button carries 1 to 64 bytes")
        return await self._edit(chat_id, message_id, card.text, buttons)

    async def get_chat_info(self, chat_id: str) -> dict[str, Json]:
        """Return the chat's `name` and `type`, as far as Telegram says."""
        told = (await self._call("getChat", outgoing.place(chat_id, None))).result
        return chat_info(told) if isinstance(told, dict) else {}

    async def _edit(self, chat_id: str, message_id: str, text: str, more: dict[str, Json]) -> SendResult:
        number = outgoing.number_of(message_id)
        if number is None:
            return _unusable("the id of a message is a number")
        fields = {**outgoing.place(chat_id, None), "message_id": number, **more}
        return await self._say("editMessageText", fields, text, message_id=message_id)

    async def _say(
        self,
        method: str,
        fields: dict[str, Json],
        text: str,
        *,
        file: "File | None" = None,
        message_id: str | None = None,
    ) -> SendResult:
        """Say a text formatted; where its marks are refused, as it stands."""
        name, limit = ("caption", LONGEST_CAPTION) if file else ("text", self.capabilities.limit)
        plain = mended(text)
        if self.capabilities.unit.measure(plain) > limit:
            return SendResult.failed(SendErrorKind.TOO_LONG, f"a {name} has at most {limit} UTF-16 units")
        is_short = len(plain) <= SHORT_TEXT
        marked = markdown_v2(plain) if is_short else await asyncio.to_thread(markdown_v2, plain)
        if marked is not None:
            shown = {**fields, name: marked, "parse_mode": "MarkdownV2"}
            result = self._result(await self._call(method, shown, file=file), message_id)
            if result.error_kind not in (SendErrorKind.BAD_FORMAT, SendErrorKind.TOO_LONG):
                return result
        return self._result(await self._call(method, {**fields, name: plain}, file=file), message_id)

    async def _call(self, method: str, fields: dict[str, Json], *, file: "File | None" = None) -> Answer:
        if self._api is None:
            return Answer(kind=SendErrorKind.TRANSIENT, error="telegram is not connected")
        return await self._api.call(method, fields, file=file)

    def _result(self, answer: Answer, message_id: str | None = None) -> SendResult:
        if answer.kind is not None and not answer.says("message is not modified"):
            return SendResult.failed(answer.kind, answer.error, retry_after_ms=answer.retry_after_ms)
        self._said()
        told = answer.result.get("message_id") if isinstance(answer.result, dict) else None
        return SendResult.sent(message_id if told is None else str(told))


def _unusable(why: str) -> SendResult:
    return SendResult.failed(SendErrorKind.BAD_FORMAT, why)
