"""What goes to Discord, out of our values, and what its refusals mean: translation only."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from postroom.contracts.messages import Json
from postroom.gateway.events import Attachment, Card, SendErrorKind, SendResult
from postroom.gateway.platforms.discord_wire import is_id

LONGEST_NONCE = 25
BUTTONS_A_ROW, ROWS = 5, 5
LONGEST_LABEL, LONGEST_VALUE, LONGEST_NOTE = 80, 100, 2_000
EPHEMERAL = 1 << 6
MENTIONS: Json = {"parse": ["users"], "replied_user": False}
"""Whom our words may wake: those they name, never a role and never everyone."""
_MIME = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


class RestFailure(Exception):
    """Discord refused a request, or no answer came; `taken` says whether it may have been carried out."""

    def __init__(
        self, text: str, *, status: int = 0, code: int = 0, wait_ms: int | None = None, taken: bool = False
    ) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status, 0 when no answer came."""
        self.code = code
        """Discord's own number for what is wrong."""
        self.wait_ms = wait_ms
        self.taken = taken


def marked(text: str, limit: int) -> str:
    """Return Markdown as Discord shows it, or as it was where that would be longer than `limit`.

    Discord knows most of Markdown: what it does not know is put into what it does. Code is left alone.
    """
    pieces = re.split(r"(^```.*?^```[ \t]*$|^```.*\Z|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    pieces[::2] = [_converted(one) for one in pieces[::2]]
    made = "".join(pieces)
    return made if len(made) <= limit else text


def _converted(text: str) -> str:
    for pattern, put in _CONVERSIONS:
        text = pattern.sub(put, text)
    return text


def _table(found: re.Match[str]) -> str:
    return f"```\n{found[0].rstrip()}\n```\n"


_Put = str | Callable[[re.Match[str]], str]
_CONVERSIONS: tuple[tuple[re.Pattern[str], _Put], ...] = (
    (re.compile(r"^#{4,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE), r"**\1**"),
    (re.compile(r"!\[([^\]\n]+)\]\((https?://[^\s)]+)\)"), r"[\1](\2)"),
    (re.compile(r"!\[\]\((https?://[^\s)]+)\)"), r"\1"),
    (re.compile(r"^\|.*\|[ \t]*\n\|[ \t:|-]+\|[ \t]*(?:\n\|.*\|[ \t]*)*(?:\n|\Z)", re.MULTILINE), _table),
)


def nonce_of(dedupe_key: str) -> str:
    """Return a key in as many characters as Discord takes; equal keys stay equal."""
    return hashlib.sha256(dedupe_key.encode()).hexdigest()[:LONGEST_NONCE]


def body_of(text: str, *, nonce: str, reply_to: str | None = None) -> dict[str, Json]:
    """Return the body of a new message."""
    made: dict[str, Json] = {
        "content": text,
        "allowed_mentions": MENTIONS,
        "nonce": nonce,
        "enforce_nonce": True,
    }
    if is_id(reply_to):
        made["message_reference"] = {"message_id": reply_to, "fail_if_not_exists": False}
    return made


def form_of(body: dict[str, Json], attachment: Attachment, data: bytes) -> list[dict[str, Any]]:
    """Return the parts of a message with a file."""
    name = file_name(attachment.name)
    told = body | {"attachments": [{"id": 0, "filename": name}]}
    mime = (
        attachment.mime
        if attachment.mime and _MIME.fullmatch(attachment.mime)
        else "application/octet-stream"
    )
    return [
        {"name": "payload_json", "value": json.dumps(told), "content_type": "application/json"},
        {"name": "files[0]", "value": data, "filename": name, "content_type": mime},
    ]


def components_of(card: Card) -> list[Json] | None:
    """Return a card's buttons in rows; None when Discord cannot show them all."""
    if len(card.buttons) > BUTTONS_A_ROW * ROWS or any(
        len(one.value) > LONGEST_VALUE for one in card.buttons
    ):
        return None
    shown: Sequence[Json] = [
        {"type": 2, "style": 2, "label": one.label[:LONGEST_LABEL] or "\u200b", "custom_id": one.value}
        for one in card.buttons
    ]
    rows = range(0, len(shown), BUTTONS_A_ROW)
    return [{"type": 1, "components": list(shown[start : start + BUTTONS_A_ROW])} for start in rows]


def note_of(text: str) -> dict[str, Json]:
    """Return the answer to an interaction that only whoever pressed sees."""
    return {
        "type": 4,
        "data": {"content": text[:LONGEST_NOTE], "flags": EPHEMERAL, "allowed_mentions": {"parse": []}},
    }


def file_name(name: str | None) -> str:
    """Return a name that may stand in a header: no path, no mark that ends a quotation."""
    kept = re.sub(r"[^\w.() +-]", "_", (name or "").replace("\\", "/").rpartition("/")[2], flags=re.ASCII)
    return kept.strip(". ")[:100] or "file"


def result_of(failure: RestFailure) -> SendResult:
    """Return what a refusal means for whoever wanted to say something."""
    kind = _kind(failure)
    return SendResult.failed(kind, str(failure), retry_after_ms=failure.wait_ms)


def _kind(failure: RestFailure) -> SendErrorKind:
    if failure.status == 0 or failure.status >= 500:
        return SendErrorKind.UNKNOWN if failure.taken else SendErrorKind.TRANSIENT
    if failure.status == 413 or (failure.status == 400 and "or fewer in length" in str(failure)):
        return SendErrorKind.TOO_LONG
    return {
        401: SendErrorKind.FORBIDDEN,
        403: SendErrorKind.FORBIDDEN,
        404: SendErrorKind.NOT_FOUND,
        429: SendErrorKind.RATE_LIMITED,
    }.get(failure.status, SendErrorKind.BAD_FORMAT)
