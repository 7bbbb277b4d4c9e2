"""Effects that follow a change: rows of the outbox, stored with it and performed by the relay."""

from collections.abc import Sequence
from typing import Literal

from postroom.contracts.outbox import NO_END, OutboxDraft
from postroom.mail.context import WriteContext

ARCHIVE = "archive"
"""The kind of what the archive must write, by project; the payload names the record as `<kind>:<id>`."""
WAKE = "wake"
"""The kind of readers who are to be woken by a message; the payload's key is `<message>/<agent>`."""

ArchiveKind = Literal["agent", "message", "reservation"]


def to_archive(context: WriteContext, kind: ArchiveKind, record_id: int, project_id: int) -> None:
    """Let the archive write a record as it stands when its turn comes."""
    context.tx.outbox.enqueue([archive_draft(f"{kind}:{record_id}", project_id)])


def archive_draft(record: str, project_id: int) -> OutboxDraft:
    """Return what has the archive of a project write a record."""
    return OutboxDraft(kind=ARCHIVE, target=str(project_id), payload={"record": record}, max_attempts=NO_END)


def to_wake(context: WriteContext, message_id: int, agent_ids: Sequence[int]) -> None:
    """Let readers be woken by a message, if it is still unread when their turn comes."""
    keys = [f"{message_id}/{agent_id}" for agent_id in agent_ids]
    context.tx.outbox.enqueue([OutboxDraft(kind=WAKE, target=WAKE, payload={"key": key}) for key in keys])


def woken_by(key: str) -> tuple[int, int]:
    """Return message and agent of a wake row."""
    message_id, _, agent_id = key.partition("/")
    return int(message_id), int(agent_id)
