"""Effects of a change: rows of the outbox, stored with it and performed by the relay."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from postroom.contracts.mail import Attachment, Message
from postroom.contracts.messages import Json
from postroom.contracts.outbox import NO_END, OutboxDraft
from postroom.mail.context import WriteContext
from postroom.stores.mail.access import MailWrites

ARCHIVE = "archive"
"""The kind of effects for the archive, by project; the payload names the record as `<kind>:<id>`."""

ArchiveKind = Literal["agent", "message", "reservation"]


def to_archive(context: WriteContext, kind: ArchiveKind, record_id: int, project_id: int) -> None:
    """Make the archive write a record in the state that it has at the time of writing."""
    payload: dict[str, Json] = {"record": f"{kind}:{record_id}"}
    draft = OutboxDraft(kind=ARCHIVE, target=str(project_id), payload=payload, max_attempts=NO_END)
    context.tx.outbox.enqueue((draft,))


DELETION: Final = "deletion"
"""The record that names files to remove."""


RECORDS: Final = "records"
"""The record that stands for several, each in the form of a single one."""
MOVED: Final = "moved"
"""The record of a merged project and its target."""


def records_of(payload: Mapping[str, Any]) -> list[str]:
    """Return the records, each `<kind>:<id>`, that the archive must write for a row of the outbox."""
    match payload["record"]:
        case "records":
            return list(payload["records"])
        case "deletion" | "moved":
            return []
        case one:
            return [one]


def deleted_of(payload: Mapping[str, Any]) -> list[int]:
    """Return the messages whose files the archive must remove for a row of the outbox."""
    return [number for number, _ in payload["messages"]] if payload["record"] == DELETION else []


def deletion_to_archive(
    tx: MailWrites, messages: Sequence[Message], attached: Mapping[int, Sequence[Attachment]]
) -> None:
    """Make the archive remove the files of deleted messages of one project."""
    hashes = {
        hash_ for some in attached.values() for one in some for hash_ in (one.sha256, one.preview_sha256)
    }
    payload: dict[str, Json] = {
        "record": DELETION,
        "messages": [[one.id, one.created_at] for one in messages],
        "threads": sorted({one.thread_id for one in messages}),
        "contents": sorted(filter(None, hashes)),
    }
    target = str(messages[0].project_id)
    tx.outbox.enqueue((OutboxDraft(kind=ARCHIVE, target=target, payload=payload, max_attempts=NO_END),))


def wake_key(message_id: int, agent_id: int) -> str:
    """Return the key of a message in a person's chat."""
    return f"{message_id}/{agent_id}"


def woken_by(key: str) -> tuple[int, int]:
    """Return message and person of such a key."""
    message_id, _, agent_id = key.partition("/")
    return int(message_id), int(agent_id)
