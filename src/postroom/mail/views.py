"""Records as callers see them.

Views are plain JSON with times in ISO 8601. Only the sender and the recipient of a blind copy see the copy.
"""

import base64
import re
from collections.abc import Sequence
from typing import Final, NotRequired, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from postroom.contracts.clock import iso
from postroom.contracts.mail import (
    Agent,
    Attachment,
    InboxEntry,
    Message,
    Project,
    Recipient,
    Reservation,
)
from postroom.contracts.waking import MessageRun
from postroom.mail.projects import format_address

STORED: Final = "stored"
NOT_TAKEN: Final = (STORED, "announced")
"""The delivery states of a message that neither its recipient nor a run has taken."""


def delivery_state(message: Message, one: Recipient | InboxEntry, run: MessageRun | None) -> str:
    """Return the most advanced state of a message at a recipient. `run` is the run that got the message."""
    reached = (
        ("recalled", message.recalled_at is not None),
        ("acknowledged", one.acked_at is not None),
        ("read", one.read_at is not None),
        ("failed", run is not None and bool(run.failure)),
        ("delivered", run is not None),
        ("announced", isinstance(one, Recipient) and one.announced_at is not None),
    )
    return next((state for state, is_so in reached if is_so), STORED)


class ProjectView(TypedDict):
    """The public fields of a project."""

    id: int
    slug: str
    human_key: str
    created_at: str


class AgentView(TypedDict):
    """The public fields of an agent."""

    id: int
    name: str
    program: str
    model: str
    task_description: str
    contact_policy: str
    created_at: str
    last_active_at: str
    retired_at: str | None


class AttachmentView(TypedDict):
    """An attachment of a message.

    `get_attachment` and the MCP resource `resource` return the content.
    """

    name: str
    media_type: str
    size: int
    sha256: str
    preview_sha256: str | None
    resource: NotRequired[str]


MessageView = TypedDict(
    "MessageView",
    {
        "id": int,
        "thread_id": str,
        "subject": str,
        "from": str,
        "to": list[str],
        "cc": list[str],
        "bcc": NotRequired[list[str]],
        "recipients_left": NotRequired[int],
        "importance": str,
        "ack_required": bool,
        "topic": str,
        "created_ts": str,
        "reply_to": int | None,
        "recalled_at": str | None,
        "attachments": list[AttachmentView],
        "body_md": NotRequired[str],
        "truncated": NotRequired[bool],
        "characters_left": NotRequired[int],
        "next_offset": NotRequired[int],
        "more": NotRequired[bool],
    },
)
"""A message. `bcc` is present only for its sender and, with one entry, for a recipient of a blind copy.

`truncated`, `characters_left` and `next_offset` are present only if `body_md` stops before the body ends.
Call get_message, or fetch_inbox with `message_id`, with `next_offset` as `offset` for the next part. `more`
is present only in the last message of an answer that has no room for the messages after it. `recipients_left`
is present only in lists: the number of further recipients, which a call with the message id returns.
"""


class InboxView(MessageView):
    """A message with the delivery fields of the recipient."""

    seq: int
    kind: str
    read_at: str | None
    acked_at: str | None


class ReservationView(TypedDict):
    """A reservation of paths by an agent."""

    id: int
    path: str
    agent: str
    exclusive: bool
    reason: str
    created_ts: str
    expires_ts: str
    released_ts: str | None
    release_reason: str


_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def maybe_iso(instant: int | None) -> str | None:
    """Format a time as ISO 8601; return None for None."""
    return None if instant is None else iso(instant)


def project_view(project: Project) -> ProjectView:
    """Return the public fields of a project."""
    return {
        "id": project.id,
        "slug": project.slug,
        "human_key": project.human_key,
        "created_at": iso(project.created_at),
    }


def agent_view(agent: Agent) -> AgentView:
    """Return the public fields of an agent, without the token hash."""
    return {
        "id": agent.id,
        "name": agent.name,
        "program": agent.program,
        "model": agent.model,
        "task_description": agent.task_description,
        "contact_policy": agent.contact_policy,
        "created_at": iso(agent.created_at),
        "last_active_at": iso(agent.last_active_at),
        "retired_at": maybe_iso(agent.retired_at),
    }


def attachment_resource(slug: str, agent: Agent, message_id: int, attachment: Attachment) -> str:
    """Return the URI of the MCP resource with which an agent reads an attachment."""
    parts = (slug, agent.name, str(message_id), attachment.sha256)
    return "mail://attachment/" + "/".join(quote(part, safe="") for part in parts)


def attachment_view(attachment: Attachment) -> AttachmentView:
    """Return the public fields of an attachment."""
    return {
        "name": attachment.name,
        "media_type": attachment.media_type,
        "size": attachment.size,
        "sha256": attachment.sha256,
        "preview_sha256": attachment.preview_sha256,
    }


def message_view(  # noqa: PLR0913 - what is shown, to whom, and how
    message: Message,
    recipients: Sequence[Recipient],
    attachments: Sequence[Attachment],
    *,
    viewer: Agent | None,
    home_slug: str,
    sender_slug: str = "",
    bodies: bool = True,
) -> MessageView:
    """Return the fields of a message that `viewer` may see.

    If `viewer` is None, no blind-copy recipients are shown. Agents outside the project `home_slug` are shown
    as `name@slug`.
    """
    named: dict[str, list[str]] = {"to": [], "cc": [], "bcc": []}
    for recipient in recipients:
        if recipient.kind != "bcc" or _may_know(message, recipient, viewer):
            named[recipient.kind].append(format_address(recipient.name, recipient.project_slug, home_slug))
    view: MessageView = {
        "id": message.id,
        "thread_id": message.thread_id,
        "subject": message.subject,
        "from": format_address(message.sender_name, sender_slug or home_slug, home_slug),
        "to": named["to"],
        "cc": named["cc"],
        "importance": message.importance,
        "ack_required": message.ack_required,
        "topic": message.topic,
        "created_ts": iso(message.created_at),
        "reply_to": message.reply_to,
        "recalled_at": None if message.recalled_at is None else iso(message.recalled_at),
        "attachments": list(map(attachment_view, attachments)),
    }
    if named["bcc"]:
        view["bcc"] = named["bcc"]
    if bodies:
        view["body_md"] = message.body_md
    return view


ANSWER_BYTES: Final = 40_000
"""Maximum size of the messages in a result, as JSON, in bytes. The value equals about 10,000 tokens.

A result contains the messages twice, as text and as structured content, because each client reads only one of
the two. Clients accept about 25,000 tokens.
"""
_WHOLE_BYTES: Final = 1_000
"""The number of bytes of each body that lists always contain."""
_MARK_BYTES: Final = 100
"""The number of bytes reserved for added fields.

A shortened message has such fields, and so has the last message of an incomplete list.
"""
_LISTED_NAMES: Final = 20
"""Maximum number of recipients of each kind that a list names."""

V = TypeVar("V", bound=MessageView)


def fit(views: Sequence[V]) -> list[V]:
    """Return the first messages that fit into `ANSWER_BYTES`, but at least one message.

    Long bodies and recipient lists are shortened in place. If messages are omitted, the last returned message
    has the field `more`.
    """
    room = ANSWER_BYTES - _MARK_BYTES
    fitting: list[V] = []
    for view in views:
        _cut_names(view)
        body = str(view.get("body_md", ""))
        needed = len(msgspec.json.encode(view)) - _json_bytes(body) + len(",")
        size = _json_bytes(body[: _WHOLE_BYTES + 1])
        needed += size if size <= _WHOLE_BYTES else _WHOLE_BYTES + _MARK_BYTES
        if fitting and needed > room:
            fitting[-1]["more"] = True
            break
        room -= needed
        fitting.append(view)
    fit_bodies([view for view in fitting if "body_md" in view])
    return fitting


def _cut_names(view: MessageView) -> None:
    left = 0
    for names in (view["to"], view["cc"], view.get("bcc", [])):
        left += len(names[_LISTED_NAMES:])
        del names[_LISTED_NAMES:]
    if left:
        view["recipients_left"] = left


def fit_bodies(views: Sequence[MessageView], *, offset: int = 0) -> None:
    """Shorten the longest bodies in place, so that all messages fit into `ANSWER_BYTES`.

    `offset` is the number of characters to skip at the start of each body.
    """
    bodies = [view["body_md"][offset:] for view in views]
    for view, body in zip(views, bodies, strict=True):
        view["body_md"] = body[:ANSWER_BYTES]
    sizes = [_json_bytes(view["body_md"]) for view in views]
    cut = sum(size > _WHOLE_BYTES for size in sizes)
    size_left = ANSWER_BYTES - (len(msgspec.json.encode(views)) - sum(sizes)) - _MARK_BYTES * cut
    longest = max(sizes, default=0)
    for shorter, size in enumerate(sorted(sizes)):
        longer = len(sizes) - shorter
        if size * longer > size_left:
            longest = max(_WHOLE_BYTES, size_left // longer)
            break
        size_left -= size
    for view, body in zip(views, bodies, strict=True):
        excerpt = view["body_md"]
        while (size := _json_bytes(excerpt)) > longest:
            excerpt = excerpt[: len(excerpt) * longest // size]
        if len(excerpt) < len(body):
            view["body_md"] = excerpt
            view["truncated"] = True
            view["characters_left"] = len(body) - len(excerpt)
            view["next_offset"] = offset + len(excerpt)


class AttachmentPart(TypedDict):
    """A part of an attachment: `text` for a UTF-8 file, `content_base64` for any other file.

    `next_offset` is present unless the part is the last one.
    """

    name: str
    media_type: str
    size: int
    sha256: str
    text: NotRequired[str]
    content_base64: NotRequired[str]
    truncated: NotRequired[bool]
    bytes_left: NotRequired[int]
    next_offset: NotRequired[int]


def attachment_part(attachment: Attachment, content: bytes, *, offset: int) -> AttachmentPart:
    """Return the part of an attachment that starts at the byte `offset`, up to the size limit of a result."""
    view: AttachmentPart = {
        "name": attachment.name,
        "media_type": attachment.media_type,
        "size": len(content),
        "sha256": attachment.sha256,
    }
    part = content[offset : offset + ANSWER_BYTES]
    if is_text(content):
        text = part.decode(errors="ignore")  # the limit may divide the last character
        while (size := _json_bytes(text)) > ANSWER_BYTES:
            text = text[: len(text) * ANSWER_BYTES // size]
        view["text"] = text
        end = offset + len(text.encode())
    else:
        part = part[: ANSWER_BYTES // 4 * 3]
        view["content_base64"] = base64.b64encode(part).decode()
        end = offset + len(part)
    if end < len(content):
        view["truncated"] = True
        view["bytes_left"] = len(content) - end
        view["next_offset"] = end
    return view


def is_text(content: bytes) -> bool:
    """Return whether content is UTF-8 text without control characters except white space."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    return _CONTROLS.search(text) is None


def _json_bytes(text: str) -> int:
    return len(msgspec.json.encode(text)) - len('""')


def visible_hidden(message: Message, recipients: Sequence[Recipient], viewer: Agent) -> list[Recipient]:
    """Return the blind-copy recipients that `viewer` may see.

    The sender sees all blind-copy recipients, and a blind-copy recipient sees only itself.
    """
    return [
        recipient
        for recipient in recipients
        if recipient.kind == "bcc" and _may_know(message, recipient, viewer)
    ]


def _may_know(message: Message, hidden: Recipient, viewer: Agent | None) -> bool:
    return viewer is not None and viewer.id in (message.sender_id, hidden.agent_id)


def inbox_view(entry: InboxEntry | Recipient, view: MessageView) -> InboxView:
    """Add the delivery fields of a recipient to the view of a message."""
    return {
        **view,
        "seq": entry.seq,
        "kind": entry.kind,
        "read_at": maybe_iso(entry.read_at),
        "acked_at": maybe_iso(entry.acked_at),
    }


def reservation_view(reservation: Reservation) -> ReservationView:
    """Return the public fields of a reservation."""
    return {
        "id": reservation.id,
        "path": reservation.pattern,
        "agent": reservation.holder,
        "exclusive": reservation.exclusive,
        "reason": reservation.reason,
        "created_ts": iso(reservation.created_at),
        "expires_ts": iso(reservation.expires_at),
        "released_ts": maybe_iso(reservation.released_at),
        "release_reason": reservation.release_reason,
    }
