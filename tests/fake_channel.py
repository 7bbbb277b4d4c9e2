"""A chat platform for tests: it repeats messages until they are acknowledged, and keeps our messages."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from postroom.contracts.errors import InputError, PostroomError, ServerUnavailable
from postroom.contracts.files import FileContent
from postroom.gateway.capabilities import ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import (
    Attachment,
    ButtonPress,
    Card,
    MessageEvent,
    MessageType,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.platforms.base import AdapterState, BasePlatformAdapter, Metadata
from postroom.gateway.session import Platform, SessionSource

_IDS = count(1)
"""A platform never repeats an id, even for another adapter."""
ALL = ChannelCapabilities(limit=4_096, edits=True, threads=True, typing=True, min_edit_interval_ms=0)


@dataclass(slots=True)
class Said:
    """A message in the chat that postroom sent."""

    chat_id: str
    text: str
    message_id: str
    reply_to: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    card: Card | None = None
    edits: int = 0


class FakeChannel(BasePlatformAdapter):
    """For tests only. Messages of `say` stay with the platform until `handle_message` has accepted them."""

    platform = Platform.TELEGRAM
    capabilities = ALL

    def __init__(
        self, config: PlatformConfig | None = None, *, capabilities: ChannelCapabilities = ALL, **given: Any
    ) -> None:
        super().__init__(config or PlatformConfig(enabled=True), **given)
        self.capabilities = capabilities  # type: ignore[misc]  # one test, one platform
        self.said: list[Said] = []
        self.deleted: list[str] = []
        self.typed = 0
        self.marks: list[tuple[str, bool]] = []
        """Messages that were marked as seen (true), or whose mark was removed (false), in order."""
        self.mark_refusal: SendResult | BaseException | None = None
        """The result of marking, if the test sets one."""
        self.marks_hang: asyncio.Event | None = None
        """Marking waits for this, if the test sets one."""
        self.refusals: deque[SendResult | BaseException] = deque()
        """The results of the next sends and edits; a message with the result `UNKNOWN` was still
        delivered."""
        self.unacknowledged: list[MessageEvent] = []
        self.token: str | None = None
        self.kept_files: dict[str, bytes | BaseException] = {}
        """The contents of files, by their `ref`."""
        self.sent_files: list[tuple[Attachment, bytes]] = []

    @property
    def account(self) -> str:
        """The bot's id."""
        return "bot"

    def lock_identity(self) -> str | None:
        """The token, if the test gives one."""
        return self.token

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Accept messages from now on."""
        self.liveness.state = AdapterState.CONNECTED

    async def disconnect(self) -> None:
        """Accept no further messages."""
        self.liveness.state = AdapterState.STOPPED

    # The people's side.

    def message(self, text: str, *, chat: str = "12345", user: str = "u1", **details: Any) -> MessageEvent:
        """Return a message as the platform would send it, with a unique id."""
        kind = details.pop("chat_type", "dm")
        files = details.pop("files", ())
        media = tuple(Attachment(kind=MessageType.PHOTO, ref=name, name=name) for name in files)
        source = SessionSource(
            platform=self.platform,
            chat_id=chat,
            chat_type=kind,
            user_id=user,
            user_name=details.pop("name", user.title()),
            account=self.account,
            thread_id=details.pop("thread", None),
        )
        return MessageEvent(
            text=text,
            source=source,
            message_id=details.pop("id", None) or f"m{next(_IDS)}",
            message_type=MessageType.PHOTO if media else MessageType.TEXT,
            media=media,
            timestamp=self._clock.now(),
            **details,
        )

    async def say(self, text: str, **details: Any) -> MessageEvent:
        """Send a message to the gateway as a person."""
        event = self.message(text, **details)
        self.unacknowledged.append(event)
        await self.send_again()
        return event

    async def send_again(self) -> None:
        """Send the unacknowledged messages in order; stop at the first failure."""
        while self.unacknowledged:
            try:
                await self.handle_message(self.unacknowledged[0])
            except InputError:
                self.liveness.refused += 1
            except PostroomError:
                return
            self.unacknowledged.pop(0)

    async def edit(self, event: MessageEvent, text: str) -> None:
        """Change the text of a message."""
        after = self.message(text, id=event.message_id)
        after.source = event.source
        if self._inbound is not None:
            await self._inbound.edited(after)

    async def take_back(self, event: MessageEvent) -> None:
        """Delete a message."""
        if self._inbound is not None and event.source is not None:
            await self._inbound.deleted(event.source, event.message_id or "")

    async def press(self, value: str, *, user: str = "u1", chat: str = "12345") -> str:
        """Press a button."""
        source = self.message("", chat=chat, user=user).source
        assert source is not None
        assert self._inbound is not None
        return await self._inbound.pressed(ButtonPress(source=source, value=value))

    def texts(self, chat: str = "12345") -> list[str]:
        """Return the texts of our messages in a chat, in order."""
        return [one.text for one in self.said if one.chat_id == chat]

    # Our side.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a message, unless the test sets another result."""
        return self._answered(lambda: self._show(chat_id, content, reply_to, metadata))

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a message's new text."""
        found = next((one for one in self.said if one.message_id == message_id), None)
        if found is None:
            return SendResult.failed(SendErrorKind.NOT_FOUND, "no such message")

        def shown() -> str:
            found.text, found.edits = content, found.edits + 1
            found.metadata = dict(metadata or {})
            return message_id

        return self._answered(shown)

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Remove a message that postroom sent."""
        self.said = [one for one in self.said if one.message_id != message_id]
        self.deleted.append(message_id)
        return SendResult.sent()

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Count it."""
        self.typed += 1

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Record it, unless the test sets another result."""
        self.marks.append((message_id, takes_back is None))
        if self.marks_hang is not None:
            await self.marks_hang.wait()
        if isinstance(self.mark_refusal, BaseException):
            raise self.mark_refusal
        return self.mark_refusal or SendResult.sent(f"mark of {message_id}")

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the test's content of a file."""
        kept = self.kept_files.get(attachment.ref, ServerUnavailable("there is no such file"))
        if isinstance(kept, BaseException):
            raise kept
        for start in range(0, len(kept), 64 * 1024):
            yield kept[start : start + 64 * 1024]

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Show a file."""
        content = await data.whole()

        def shown() -> str:
            self.sent_files.append((attachment, content))
            return f"f{len(self.sent_files)}"

        return self._answered(shown)

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Show a card."""

        def shown() -> str:
            message_id = self._show(chat_id, card.text, None, metadata)
            self.said[-1].card = card
            return message_id

        return self._answered(shown)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a card in its new state."""
        found = next((one for one in self.said if one.message_id == message_id), None)
        if found is None:
            return SendResult.failed(SendErrorKind.NOT_FOUND, "no such card")
        found.text, found.card = card.text, card
        return SendResult.sent(message_id)

    def _show(self, chat_id: str, text: str, reply_to: str | None, metadata: Metadata | None) -> str:
        message_id = f"s{len(self.said) + len(self.deleted) + 1}"
        self.said.append(Said(chat_id, text, message_id, reply_to, dict(metadata or {})))
        self._said()
        return message_id

    def _answered(self, shown: Any) -> SendResult:
        if not self.refusals:
            return SendResult.sent(shown())
        answer = self.refusals.popleft()
        if isinstance(answer, BaseException):
            raise answer
        if answer.error_kind is SendErrorKind.UNKNOWN:
            shown()
        return answer
