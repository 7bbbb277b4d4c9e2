"""Notes: short facts about a project, which sessions and runs see when they use related files or tasks."""

from typing import Final

from postroom.contracts.records import Record

MAX_ACTIVE: Final = 500
"""Maximum number of active notes in a project, which keeps the search for notes fast."""
MAX_SUBJECT: Final = 120
MAX_TEXT: Final = 600


class Note(Record, frozen=True, kw_only=True):
    """A note of a project, which is active until `ends_at`."""

    id: int
    project_id: int
    subject: str
    text: str
    paths: tuple[str, ...]
    """Patterns of the files that the note concerns; a note without files and task concerns every file."""
    task_id: int | None
    author_id: int
    run_id: str
    """The run in which the note was written; empty outside a run."""
    commit: str
    """The commit at which the note was true, if its author named one."""
    replaces: tuple[int, ...]
    replaced_by: int | None
    created_at: int
    ends_at: int
    """The time when the note expires, or when it was replaced or ended."""
