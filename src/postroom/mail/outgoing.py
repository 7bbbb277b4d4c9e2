"""Effects that follow a change: rows of the outbox, stored with it and performed by the relay."""

from typing import Literal

from postroom.contracts.messages import Json
from postroom.contracts.outbox import NO_END, OutboxDraft
from postroom.mail.context import WriteContext

ARCHIVE = "archive"
"""The kind of what the archive must write, by project; the payload names the record as `<kind>:<id>`."""

ArchiveKind = Literal["agent", "message", "reservation"]


def to_archive(context: WriteContext, kind: ArchiveKind, record_id: int, project_id: int) -> None:
    """Let the archive write a record as it stands when its turn comes."""
    payload: dict[str, Json] = {"record": f"{kind}:{record_id}"}
    draft = OutboxDraft(kind=ARCHIVE, target=str(project_id), payload=payload, max_attempts=NO_END)
    context.tx.outbox.put(draft, now=context.now)


def wake_key(message_id: int, agent_id: int) -> str:
    """Return the name of a message in a person's chat."""
    return f"{message_id}/{agent_id}"


def woken_by(key: str) -> tuple[int, int]:
    """Return message and person of such a name."""
    message_id, _, agent_id = key.partition("/")
    return int(message_id), int(agent_id)
