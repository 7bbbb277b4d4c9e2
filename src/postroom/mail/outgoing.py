"""Effects that follow a change: rows of the outbox, stored with it and performed by the relay."""

from typing import Literal

from postroom.mail.desk import Writing

ARCHIVE = "archive"
"""The topic of what the archive must write; a key is `<kind>:<id>`."""

ArchiveKind = Literal["agent", "message", "reservation"]


def to_archive(desk: Writing, kind: ArchiveKind, record_id: int, project_id: int) -> None:
    """Let the archive write a record as it stands when its turn comes."""
    desk.tx.insert_outbox(ARCHIVE, f"{kind}:{record_id}", project_id, desk.now)
