"""Speaks answers as voice messages: the outbox handler for voice rows.

    the text has arrived ─▶ its row ends and adds a row for the voice ─▶ spoken ─▶ stored as a file ─▶ sent
                                                                         └ failed: one sentence to the chat

A voice message has a separate outbox row, after the row of its text. So a slow or failing endpoint neither
delays nor repeats the text, and a text that is sent twice has only one voice message.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import MailboxClosed, PostroomError, ProviderFailed, StoreError
from postroom.contracts.files import ChatFile, detect_media_type, safe_name
from postroom.contracts.outbox import OutboxDraft, OutboxMessage
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.config import MAX_SPOKEN_LENGTH, VOICE_ON, GatewayConfig
from postroom.gateway.events import MessageType, SendErrorKind
from postroom.gateway.files import read_content, to_attachment
from postroom.gateway.pacing import UNTOLD_MS
from postroom.gateway.platforms.base import BasePlatformAdapter, send_metadata
from postroom.gateway.replies import Reply, ReplyKind
from postroom.gateway.session import SessionSource
from postroom.gateway.sessions import Sessions
from postroom.gateway.spooling import read_head, spooled
from postroom.log import get_logger
from postroom.relay import NotPerformed, Outcome, Performed
from postroom.stores.chats.stores import ChatStores
from postroom.stores.store import Joined, Transaction

if TYPE_CHECKING:
    from postroom.gateway.delivery import Delivery

_LOG = get_logger(__name__)
VOICE_KIND: Final = "voice"
_SPEAK_SECONDS = 60.0
"""The time limit for speaking one answer, in seconds, including retries."""
_BEING_SENT = 1
"""The step number that is stored in the row before the voice message is sent."""
_CODE = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\s]*\)")
_MARKS = re.compile(
    r"^[^\S\n]*(?:#{1,6}|>|[*+-])[^\S\n]+|\*\*+|`+|~~|(?<!\w)[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}(?!\w)",
    re.MULTILINE,
)
Speak = Callable[[str, str], AsyncIterator[bytes]]
"""Yields the audio of a spoken text as `opus` or `mp3`."""


def spoken_words(text: str) -> str:
    """Return the text to speak for a Markdown answer, without code blocks and link addresses."""
    return _MARKS.sub("", _LINK.sub(r"\1", _CODE.sub("", text))).strip()


class Voices:
    """Speaks the answers in chats that have turned on speech."""

    at_once = 4
    together = False

    def __init__(
        self,
        delivery: "Delivery",
        stores: ChatStores,
        sessions: Sessions,
        config: GatewayConfig,
        clock: Clock,
        speak: Speak,
    ) -> None:
        self.lease = config.delivery.lease + timedelta(seconds=_SPEAK_SECONDS)
        self.retries = config.delivery.first_retry, config.delivery.longest_retry
        self._delivery, self._stores, self._sessions = delivery, stores, sessions
        self._config, self._clock, self._speak = config, clock, speak
        self._speaking = Tasks("voices")

    def serves(self, target: str) -> bool:
        """Return whether the bot of an outbox target is connected in this process."""
        return self._delivery.serves(target)

    async def close(self) -> None:
        """Stop the requests to the speech endpoint. Unfinished answers are spoken after the next start."""
        await self._speaking.close()

    async def build_draft(
        self, row: OutboxMessage, reply: Reply, source: SessionSource
    ) -> OutboxDraft | None:
        """Return the outbox row for the voice message of a reply, or None if the reply is not spoken.

        Raises:
            StoreError: The chat's setting could not be read.
        """
        if not reply.is_whole_answer or len(reply.text) > MAX_SPOKEN_LENGTH:
            return None
        adapter, words = self._delivery.find_adapter(row, source), spoken_words(reply.text)
        if adapter is None or MessageType.AUDIO not in adapter.capabilities.media or not words:
            return None
        value = await self._sessions.address(reply.thread_id)
        session = None if value is None else await self._sessions.load(value[0])
        if session is None or session.settings.get("voice") != VOICE_ON:
            return None
        voice = Reply(kind=ReplyKind.ANSWER, thread_id=reply.thread_id, text=words, source=source.to_dict())
        return replace(voice.draft(f"voice/{row.outbox_id}"), kind=VOICE_KIND)

    async def perform(self, rows: Sequence[OutboxMessage]) -> Outcome:
        """Convert an answer to speech, send the audio, and return the outcome.

        A failed voice message does not become a dead letter.

        Raises:
            StoreError: The audio or its state could not be stored. The row is performed again.
        """
        [row] = rows
        try:
            reply = Reply.of(row)
        except msgspec.ValidationError as error:
            return NotPerformed(error=f"the stored answer cannot be read: {type(error).__name__}", final=True)
        source, rules = SessionSource.from_dict(reply.source or {}), self._config.delivery
        if row.attempt_count > rules.max_attempts:
            return self._give_up(row, reply, f"{rules.max_attempts} attempts failed")
        if self._clock.now() - row.created_at > milliseconds(rules.max_age):
            return self._give_up(row, reply, "the voice message is older than max_age, so it is not sent")
        adapter = self._delivery.find_adapter(row, source)
        if adapter is None or self._speaking.closed:
            return NotPerformed(
                error="the chat's channel is not connected to this server",
                untried=True,
                not_before_ms=UNTOLD_MS,
            )
        try:
            file = await self._speaking.complete(self._spoken(row, reply, adapter), name="speak")
        except MailboxClosed:
            return NotPerformed(error="the server is stopping", untried=True)
        except StoreError:
            raise
        except PostroomError as error:
            return self._give_up(row, reply, error.describe())
        except TimeoutError:
            return self._give_up(row, reply, f"the speech endpoint took longer than {_SPEAK_SECONDS:g} s")
        source = SessionSource.from_dict(reply.source or {})
        attachment = to_attachment(file)
        if file.media_type == "audio/ogg" and MessageType.VOICE in adapter.capabilities.media:
            attachment = replace(attachment, kind=MessageType.VOICE)
        may_be_there = row.may_have_arrived and row.steps_done >= _BEING_SENT
        mark = wording.POSSIBLE_DUPLICATE if may_be_there and not adapter.capabilities.dedupes else None
        metadata = send_metadata(source, dedupe_key=f"{row.outbox_id}/voice", final=True)
        await self._stores.note_sent(row.outbox_id, _BEING_SENT)
        content = read_content(file, self._stores.files)
        result = await adapter.send_media(source.chat_id, attachment, content, mark, metadata)
        if result.success:
            return Performed()
        kind, why = result.error_kind or SendErrorKind.UNKNOWN, f"{result.error_kind}: {result.error}"
        wait_ms = result.retry_after_ms or 0
        if kind is SendErrorKind.RATE_LIMITED:
            return NotPerformed(error=why, untried=True, not_before_ms=wait_ms or UNTOLD_MS)
        if kind.may_pass:
            return NotPerformed(error=why, not_before_ms=wait_ms, may_have_arrived=kind.may_have_arrived)
        return self._give_up(row, reply, why)

    async def _spoken(self, row: OutboxMessage, reply: Reply, adapter: BasePlatformAdapter) -> ChatFile:
        """Return the audio of an answer as a stored file."""
        message_id = f"voice/{row.outbox_id}"
        stored = await self._stores.files.files(reply.thread_id, [message_id])
        if stored:
            return stored[0]
        takes_voices = MessageType.VOICE in adapter.capabilities.media
        by_kind = self._config.max_media_bytes_by_kind.get("audio", self._config.max_media_bytes)
        most = min(by_kind, self._config.max_media_bytes)
        sound = self._speak(reply.text, "opus" if takes_voices else "mp3")
        async with asyncio.timeout(_SPEAK_SECONDS), spooled(sound, most=most) as spooled_file:
            media_type = detect_media_type(
                await asyncio.to_thread(read_head, spooled_file.path), None, is_sound=True
            )
            if not media_type.startswith("audio/"):
                raise ProviderFailed(f"the speech endpoint returned {media_type}, which is not audio")
            file = ChatFile(
                thread_id=reply.thread_id,
                message_id=message_id,
                position=0,
                name=safe_name(None, media_type, 1),
                media_type=media_type,
                size=spooled_file.size,
                sha256=spooled_file.sha256,
            )
            await self._stores.files.put_bytes(spooled_file)
        await self._stores.files.put(file)
        return file

    def _give_up(self, row: OutboxMessage, reply: Reply, why: str) -> Performed:
        """Log why a voice message cannot be sent, and tell the chat."""
        _LOG.warning("voice.not_sent", target=row.target, thread_id=reply.thread_id, reason=why)
        notice = replace(reply, kind=ReplyKind.NOTICE, text=wording.NOT_SPOKEN).draft(
            f"unspoken/{row.outbox_id}"
        )

        def change(tx: Transaction) -> None:
            tx.outbox.enqueue((notice,))

        return Performed(also=Joined(locks=tuple(notice.locks), change=change))
