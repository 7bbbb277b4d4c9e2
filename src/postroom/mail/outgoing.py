"""Effects that follow a change: rows of the outbox, stored with it and performed by relays."""

from typing import Literal

from postroom.mail.context import WriteContext

ARCHIVE = "archive"
"""The topic of what the archive must write; a key is `<kind>:<id>`."""

ArchiveKind = Literal["agent", "message", "reservation"]


def to_archive(context: WriteContext, kind: ArchiveKind, record_id: int, project_id: int) -> None:
    """Let the archive write a record as it stands when its turn comes."""
    context.tx.insert_outbox(ARCHIVE, f"{kind}:{record_id}", project_id, context.now)


def wake_key(message_id: int, agent_id: int) -> str:
    """Return the name of a message in a person's chat."""
    return f"{message_id}/{agent_id}"


def woken_by(key: str) -> tuple[int, int]:
    """Return message and person of such a name."""
    message_id, _, agent_id = key.partition("/")
    return int(message_id), int(agent_id)
