"""Effects that follow a change: rows of the outbox, stored with it and performed by the relay."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from postroom.contracts.mail import Attachment, Message
from postroom.contracts.messages import Json
from postroom.contracts.outbox import NO_END, OutboxDraft
from postroom.mail.context import WriteContext
from postroom.stores.mail.access import MailWrites

ARCHIVE = "archive"
"""The kind of what the archive must write, by project; the payload names the record as `<kind>:<id>`."""

ArchiveKind = Literal["agent", "message", "reservation"]


def to_archive(context: WriteContext, kind: ArchiveKind, record_id: int, project_id: int) -> None:
    """Let the archive write a record as it stands when its turn comes."""
    payload: dict[str, Json] = {"record": f"{kind}:{record_id}"}
    draft = OutboxDraft(kind=ARCHIVE, target=str(project_id), payload=payload, max_attempts=NO_END)
    context.tx.outbox.enqueue((draft,))


DELETION: Final = "deletion"
"""The record that says which files are to be taken out."""


RECORDS: Final = "records"
"""The record that stands for many, each named as one is."""
MOVED: Final = "moved"
"""The record that says which project is another one's now."""


def records_of(payload: Mapping[str, Any]) -> list[str]:
    """Return the records, each `<kind>:<id>`, that a row of the outbox has the archive write."""
    match payload["record"]:
        case "records":
            return list(payload["records"])
        case "deletion" | "moved":
            return []
        case one:
            return [one]


def deleted_of(payload: Mapping[str, Any]) -> list[int]:
    """Return the messages whose files a row of the outbox has the archive take out."""
    return [number for number, _ in payload["messages"]] if payload["record"] == DELETION else []


def deletion_to_archive(
    tx: MailWrites, messages: Sequence[Message], attached: Mapping[int, Sequence[Attachment]]
) -> None:
    """Let the archive take out the files of messages of one project that were deleted."""
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
    """Return the name of a message in a person's chat."""
    return f"{message_id}/{agent_id}"


def woken_by(key: str) -> tuple[int, int]:
    """Return message and person of such a name."""
    message_id, _, agent_id = key.partition("/")
    return int(message_id), int(agent_id)
