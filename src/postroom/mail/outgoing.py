"""The side effects of a change: outbox rows, which the change stores and the relay performs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from postroom.contracts.mail import Attachment, Message
from postroom.contracts.messages import Json
from postroom.contracts.outbox import NO_END, OutboxDraft
from postroom.mail.context import WriteContext
from postroom.stores.mail.access import MailWrites

ARCHIVE = "archive"
"""The kind of effects for the archive.

Each project is a target, and the payload names the record as `<kind>:<id>`.
"""

ArchiveKind = Literal["agent", "message", "reservation"]


def to_archive(context: WriteContext, kind: ArchiveKind, record_id: int, project_id: int) -> None:
    """Queue a record for the archive."""
    payload: dict[str, Json] = {"record": f"{kind}:{record_id}"}
    draft = OutboxDraft(kind=ARCHIVE, target=str(project_id), payload=payload, max_attempts=NO_END)
    context.tx.outbox.enqueue((draft,))


DELETION: Final = "deletion"
"""The record kind for deleted messages, whose files the archive must remove."""


RECORDS: Final = "records"
"""The kind of a record that means several records, each of which is written as usual."""
MOVED: Final = "moved"
"""The record kind for a merged project. The record names the project into which it was merged."""


def list_records(payload: Mapping[str, Any]) -> list[str]:
    """Return the records that the archive must write for an outbox row, each as `<kind>:<id>`."""
    match payload["record"]:
        case "records":
            return list(payload["records"])
        case "deletion" | "moved":
            return []
        case one:
            return [one]


def list_deleted_ids(payload: Mapping[str, Any]) -> list[int]:
    """Return the ids of the messages whose archive files an outbox row removes."""
    return [number for number, _ in payload["messages"]] if payload["record"] == DELETION else []


def deletion_to_archive(
    tx: MailWrites, messages: Sequence[Message], attached: Mapping[int, Sequence[Attachment]]
) -> None:
    """Queue the removal of deleted messages from the archive of the messages' project."""
    hashes = {
        hash_
        for some in attached.values()
        for attachment in some
        for hash_ in (attachment.sha256, attachment.preview_sha256)
    }
    payload: dict[str, Json] = {
        "record": DELETION,
        "messages": [[message.id, message.created_at] for message in messages],
        "threads": sorted({message.thread_id for message in messages}),
        "contents": sorted(filter(None, hashes)),
    }
    target = str(messages[0].project_id)
    tx.outbox.enqueue((OutboxDraft(kind=ARCHIVE, target=target, payload=payload, max_attempts=NO_END),))


def wake_key(message_id: int, agent_id: int) -> str:
    """Return the key for the delivery of a message to a person's chat."""
    return f"{message_id}/{agent_id}"


def woken_by(key: str) -> tuple[int, int]:
    """Return the message id and the person's id in a key of `wake_key`."""
    message_id, _, agent_id = key.partition("/")
    return int(message_id), int(agent_id)
