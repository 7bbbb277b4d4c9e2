"""Effects that follow a change: rows of the outbox, stored with it and performed by relays."""

from collections.abc import Sequence
from typing import Literal

from postroom.mail.context import WriteContext

ARCHIVE = "archive"
"""The topic of what the archive must write; a key is `<kind>:<id>`."""
WAKE = "wake"
"""The topic of readers who are to be woken by a message; a key is `<message>/<agent>`."""

ArchiveKind = Literal["agent", "message", "reservation"]


def to_archive(context: WriteContext, kind: ArchiveKind, record_id: int, project_id: int) -> None:
    """Let the archive write a record as it stands when its turn comes."""
    context.tx.insert_outbox(ARCHIVE, f"{kind}:{record_id}", project_id, context.now)


def to_wake(context: WriteContext, message_id: int, agent_ids: Sequence[int], project_id: int) -> None:
    """Let readers be woken by a message, if it is still unread when their turn comes."""
    for agent_id in agent_ids:
        context.tx.insert_outbox(WAKE, f"{message_id}/{agent_id}", project_id, context.now)


def woken_by(key: str) -> tuple[int, int]:
    """Return message and agent of a wake row."""
    message_id, _, agent_id = key.partition("/")
    return int(message_id), int(agent_id)
