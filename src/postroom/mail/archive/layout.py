"""Maps records to files, in a layout that people can read and from which a database can be rebuilt.

    project.json
    agents/<name>/profile.json
    messages/<yyyy>/<mm>/<id>-<slug>.md      front matter, then the body as it was given
    threads/<id>.md                          a digest of the newest messages, in order
    reservations/<id>.json
    attachments/<first two>/<sha256>

Each line of the front matter is `name: <JSON>`, which YAML parsers also understand. Blind-copy recipients are
never written to the archive. Only the database contains them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from postroom.contracts.choices import Importance
from postroom.contracts.clock import from_iso, iso
from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import Agent, Attachment, Message, Project, Recipient, Reservation
from postroom.mail.archive import layout
from postroom.mail.names import check_name
from postroom.mail.views import attachment_view

PROJECT_FILE = "project.json"
DIGEST_MESSAGES = 500
_SLUG_CHARS = 40
_FENCE = "---"
_FILE = re.compile(r"^messages/\d{4}/\d{2}/(\d+)-[a-z0-9-]*\.md$")


def agent_path(name: str) -> str:
    """Return the path of an agent's profile in the archive."""
    return f"agents/{name}/profile.json"


def message_folder(sent_at: int) -> str:
    """Return the archive folder for the month in which a message was sent."""
    moment = datetime.fromtimestamp(sent_at / 1000, tz=UTC)
    return f"messages/{moment:%Y}/{moment:%m}"


def message_path(message: Message) -> str:
    """Return the archive path of a message, which contains the message id and a shortened subject."""
    slug = re.sub(r"[^a-z0-9]+", "-", message.subject.casefold()).strip("-")[:_SLUG_CHARS].strip("-")
    # Existing archives use this name. If the name changed, their old files would stay in the archive.
    return f"{message_folder(message.created_at)}/{message.id}-{slug or 'letter'}.md"


def thread_path(thread_id: str) -> str:
    """Return the archive path of a thread's digest."""
    return f"threads/{thread_id.replace('%', '%25').replace(':', '%3A')}.md"


def reservation_path(reservation_id: int) -> str:
    """Return the archive path of a reservation."""
    return f"reservations/{reservation_id}.json"


def attachment_path(sha256: str) -> str:
    """Return the archive path of an attachment's content."""
    return f"attachments/{sha256[:2]}/{sha256}"


def parse_message_path(path: str) -> int | None:
    """Return the message id in an archive path, or None for paths of other files."""
    match = _FILE.match(path)
    return int(match[1]) if match else None


def project_file(project: Project) -> bytes:
    """Return the content of a project's archive file."""
    return _json(
        {
            "id": project.id,
            "slug": project.slug,
            "human_key": project.human_key,
            "created_at": iso(project.created_at),
            "spelling": project.spelling,
            "git_identity": project.git_identity,
            "owner": project.owner,
        }
    )


def moved_project_file(slug: str, human_key: str, merged_into: str) -> bytes:
    """Return the archive file of a merged project, which names the target of the merge."""
    return _json({"slug": slug, "human_key": human_key, "merged_into": merged_into})


def agent_file(agent: Agent) -> bytes:
    """Return the content of an agent's archive file, which contains no tokens."""
    return _json(
        {
            "id": agent.id,
            "name": agent.name,
            "program": agent.program,
            "model": agent.model,
            "task_description": agent.task_description,
            "contact_policy": agent.contact_policy,
            "created_at": iso(agent.created_at),
            "retired_at": iso(agent.retired_at) if agent.retired_at is not None else None,
        }
    )


def reservation_file(reservation: Reservation) -> bytes:
    """Return the content of a reservation's archive file."""
    ended = reservation.released_at
    return _json(
        {
            "id": reservation.id,
            "agent": reservation.holder,
            "pattern": reservation.pattern,
            "prefix": reservation.prefix,
            "exclusive": reservation.exclusive,
            "reason": reservation.reason,
            "created_at": iso(reservation.created_at),
            "expires_at": iso(reservation.expires_at),
            "ttl_ms": reservation.ttl,
            "released_at": iso(ended) if ended is not None else None,
            "released_by": reservation.released_by,
            "release_reason": reservation.release_reason,
        }
    )


def message_file(
    message: Message, project: Project, recipients: Sequence[Recipient], attachments: Sequence[Attachment]
) -> bytes:
    """Return the content of a message's archive file."""
    fields: dict[str, Any] = {
        "id": message.id,
        "project": project.slug,
        "from": message.sender_name,
        "to": _names(recipients, "to", project),
        "cc": _names(recipients, "cc", project),
        "subject": message.subject,
        "thread": message.thread_id,
        "importance": message.importance,
        "ack_required": message.ack_required,
        "created": iso(message.created_at),
        "attachments": [attachment_view(attachment) for attachment in attachments],
    }
    if message.topic:
        fields["topic"] = message.topic
    if message.reply_to is not None:
        fields["reply_to"] = message.reply_to
    if message.broadcast:
        fields["broadcast"] = True
    if message.recalled_at is not None:
        fields["recalled"] = iso(message.recalled_at)
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return "\n".join([_FENCE, *lines, _FENCE, "", message.body_md]).encode()


def read_message_file(content: bytes) -> tuple[dict[str, Any], str]:
    """Return the front matter and the body of a message's archive file.

    Raises:
        ValueError: The file has another format.
    """
    text = content.decode()
    if not text.startswith(f"{_FENCE}\n"):
        raise ValueError("the file has no front matter")
    head, fence, body = text[len(_FENCE) + 1 :].partition(f"\n{_FENCE}\n\n")
    if not fence:
        raise ValueError("the front matter is not closed")
    fields = {}
    for line in head.split("\n"):  # not splitlines: JSON may contain other line separators
        name, _, value = line.partition(": ")
        fields[name] = json.loads(value)
    return fields, body


def thread_file(thread_id: str, messages: Sequence[Message], left_out: int) -> bytes:
    """Return the content of the archive file for a thread's digest."""
    lines = [f"# {_one_line(messages[0].subject) or 'Thread'}", "", f"Thread `{thread_id}`"]
    if left_out:
        lines.append(f"\n{left_out} earlier messages are omitted here.")
    lines.append("")
    for message in messages:
        subject = "(recalled)" if message.recalled_at is not None else _one_line(message.subject)
        link = f"../{message_path(message)}" if message.recalled_at is None else ""
        shown = f"[#{message.id}]({link})" if link else f"#{message.id}"
        lines.append(f"- {shown} {iso(message.created_at)} **{message.sender_name or 'unknown'}**: {subject}")
    return ("\n".join(lines) + "\n").encode()


def parse_time(value: object) -> int | None:
    """Return the milliseconds since 1970 for an ISO time in an archive file, or None for a missing time."""
    return from_iso(value) if isinstance(value, str) else None


def _names(recipients: Sequence[Recipient], kind: str, home: Project) -> list[str]:
    return [
        recipient.name
        if recipient.project_slug == home.slug
        else f"{recipient.name}@{recipient.project_slug}"
        for recipient in recipients
        if recipient.kind == kind
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def foreign_profile(profile: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the name and the archive file of an agent that was imported from another system.

    Raises:
        InvalidName: The name is not valid for an agent.
    """
    name = check_name(str(profile.get("name", "")))
    return name, (json.dumps(dict(profile), ensure_ascii=False, indent=2, default=str) + "\n").encode()


def foreign_message(
    slug: str, message: Mapping[str, Any], *, body_md: str, sender: str, recipients: Sequence[str], now: int
) -> tuple[str, bytes]:
    """Return the path and the archive file of a message that was imported from another system.

    Raises:
        InvalidArgument: The message has no integer `id`.
    """
    number = message.get("id")
    if not isinstance(number, int):
        raise InvalidArgument(
            f"a message needs an integer id, not {number!r}", value=number, remedy="give `id`"
        )
    stored = Message(
        id=number,
        project_id=0,
        sender_id=0,
        sender_name=sender,
        thread_id=str(message.get("thread_id") or f"msg-{number}"),
        subject=str(message.get("subject", "")),
        body_md=body_md,
        importance=cast(Importance, message.get("importance", "normal")),
        ack_required=bool(message.get("ack_required", False)),
        created_at=now,
    )
    project = Project(id=0, slug=slug, human_key="", created_at=now, spelling="")
    readers = [
        Recipient(message_id=number, agent_id=0, name=name, project_slug=slug, kind="to", seq=0)
        for name in recipients
    ]
    return layout.message_path(stored), layout.message_file(stored, project, readers, ())
