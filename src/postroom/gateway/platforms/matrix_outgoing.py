"""What is said on Matrix: contents of events, and what an answer means for what was sent. No I/O."""

import hashlib
from collections.abc import Mapping

from postroom.contracts.messages import Json
from postroom.gateway.events import Attachment, MessageType, SendErrorKind, SendResult
from postroom.gateway.platforms.safe_text import is_marked_up, one_line

LARGEST_EVENT = 60_000
"""Bytes of an event's content; a homeserver refuses events over 65,536 with all that it adds."""
SENT_AS = {
    MessageType.PHOTO: "m.image",
    MessageType.STICKER: "m.image",
    MessageType.VIDEO: "m.video",
    MessageType.AUDIO: "m.audio",
    MessageType.VOICE: "m.audio",
}


def content_of(
    text: str, html: str, *, thread_id: str | None = None, reply_to: str | None = None
) -> list[dict[str, Json]]:
    """Return the contents to try, the best first: with markup where it adds something and fits, then without.

    Nobody is mentioned by it, whatever the text says: an answer must not call a whole room.
    """
    plain: dict[str, Json] = {"msgtype": "m.text", "body": text, "m.mentions": {}}
    if relation := _relation(thread_id, reply_to):
        plain["m.relates_to"] = relation
    marked: dict[str, Json] = {**plain, "format": "org.matrix.custom.html", "formatted_body": html}
    return [marked, plain] if is_marked_up(html, text) and _fits(marked) else [plain]


def edit_of(message_id: str, text: str, html: str) -> list[dict[str, Json]]:
    """Return the contents to try that give a message other words."""
    found = []
    for new in content_of(text, html):
        edit: dict[str, Json] = {
            **new,
            "body": f"* {text[:200]}",  # shown only by clients that know no edits
            "m.new_content": new,
            "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
        }
        edit.pop("format", None), edit.pop("formatted_body", None)
        found.append(edit)
    return [one for one in found[:-1] if _fits(one)] + found[-1:]


def media_of(
    url: str, attachment: Attachment, size: int, caption: str | None, thread_id: str | None
) -> dict[str, Json]:
    """Return the content of a file that was uploaded."""
    name = one_line(attachment.name or "file")
    content: dict[str, Json] = {
        "msgtype": SENT_AS.get(attachment.kind, "m.file"),
        "body": caption or name,
        "filename": name,
        "url": url,
        "info": {"mimetype": attachment.mime or "application/octet-stream", "size": size},
        "m.mentions": {},
    }
    if relation := _relation(thread_id, None):
        content["m.relates_to"] = relation
    return content


def transaction_id(kind: str, key: str) -> str:
    """Return the transaction id of something that is sent: the same for the same key."""
    return f"{kind}-{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:40]}"


def refusal(status: int, errcode: str, retry_after_ms: int | None) -> SendResult:
    """Return what an answer other than 200 means for something that was sent."""
    said = f"the homeserver answered {status} {errcode}".strip()
    if status == 429 or errcode == "M_LIMIT_EXCEEDED":
        return SendResult.failed(SendErrorKind.RATE_LIMITED, said, retry_after_ms=retry_after_ms or 5_000)
    if status == 413 or errcode == "M_TOO_LARGE":
        return SendResult.failed(SendErrorKind.TOO_LONG, said)
    if status in (408, 504):
        return SendResult.failed(SendErrorKind.UNKNOWN, said)
    if status >= 500:
        return SendResult.failed(SendErrorKind.TRANSIENT, said, retry_after_ms=retry_after_ms)
    kinds = {401: SendErrorKind.FORBIDDEN, 403: SendErrorKind.FORBIDDEN, 404: SendErrorKind.NOT_FOUND}
    return SendResult.failed(kinds.get(status, SendErrorKind.BAD_FORMAT), said)


def _relation(thread_id: str | None, reply_to: str | None) -> dict[str, Json] | None:
    if thread_id is not None:
        answered = {"event_id": reply_to or thread_id}
        return {
            "rel_type": "m.thread",
            "event_id": thread_id,
            "is_falling_back": reply_to is None,
            "m.in_reply_to": answered,
        }
    return {"m.in_reply_to": {"event_id": reply_to}} if reply_to else None


def _fits(content: Mapping[str, Json]) -> bool:
    return _weight(content) <= LARGEST_EVENT


def _weight(value: Json) -> int:
    """Return about how many bytes a value is as JSON, never less."""
    if isinstance(value, str):
        return 2 + len(value.encode("utf-8", "replace")) + sum(value.count(one) for one in '"\\\n\t')
    if isinstance(value, Mapping):
        return 2 + sum(_weight(str(name)) + _weight(one) + 2 for name, one in value.items())
    return 32
