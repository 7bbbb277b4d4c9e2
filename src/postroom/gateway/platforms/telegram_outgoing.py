"""What is sent to Telegram: the fields of its methods, made of what the gateway says."""

import re
from typing import Final

from postroom.contracts.messages import Json
from postroom.gateway.events import Attachment, Card, MessageType
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.platforms.telegram_wire import mended

MOST_DATA_BYTES: Final = 64
"""What a button may carry."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_MIME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,80}", re.IGNORECASE)
_LONGEST_NAME: Final = 200
_MEDIA: Final = {
    MessageType.PHOTO: ("sendPhoto", "photo"),
    MessageType.VIDEO: ("sendVideo", "video"),
    MessageType.AUDIO: ("sendAudio", "audio"),
    MessageType.VOICE: ("sendVoice", "voice"),
    MessageType.STICKER: ("sendSticker", "sticker"),
}
_GENERAL: Final = "1"
"""The topic that every forum begins with; a message into it names no topic."""


def number_of(text: str | None) -> int | None:
    """Return an id as the number that it is; None when it is none."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def place(chat_id: str, metadata: Metadata | None) -> dict[str, Json]:
    """Return the fields that say where a message goes."""
    number = number_of(chat_id)
    where: dict[str, Json] = {"chat_id": mended(chat_id) if number is None else number}
    thread = (metadata or {}).get("thread_id")
    topic = None if thread is None or str(thread) == _GENERAL else number_of(str(thread))
    return where if topic is None else {**where, "message_thread_id": topic}


def answering(reply_to: str | None) -> dict[str, Json]:
    """Return the fields that make it an answer; should that message be gone, it is sent all the same."""
    number = number_of(reply_to)
    if number is None:
        return {}
    return {"reply_parameters": {"message_id": number, "allow_sending_without_reply": True}}


def keyboard(card: Card) -> dict[str, Json] | None:
    """Return a card's buttons, one below the other; None when one of them cannot be carried."""
    if any(not 0 < len(one.value.encode("utf-8", "replace")) <= MOST_DATA_BYTES for one in card.buttons):
        return None
    rows = [[{"text": mended(one.label), "callback_data": mended(one.value)}] for one in card.buttons]
    return {"reply_markup": {"inline_keyboard": rows}}


def media_method(kind: MessageType, *, has_caption: bool) -> tuple[str, str]:
    """Return the method for a kind of file, and its field; a sticker with words goes as a document."""
    if kind is MessageType.STICKER and has_caption:
        return "sendDocument", "document"
    return _MEDIA.get(kind, ("sendDocument", "document"))


def file_of(attachment: Attachment, data: bytes) -> tuple[str, bytes, str]:
    """Return name, content and MIME type of a file; the name is data, whatever stands in it."""
    name = mended(attachment.name or "")[:_LONGEST_NAME] or attachment.kind.value
    mime = attachment.mime or ""
    return name, data, mime if _MIME.fullmatch(mime) else "application/octet-stream"
