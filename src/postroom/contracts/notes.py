"""Notes: short facts about a project, shown to sessions and runs when they use the related files or tasks."""

from typing import Final

from postroom.contracts.records import Record

MAX_ACTIVE: Final = 500
"""Maximum number of active notes of a project, so that searching them stays fast."""
MAX_SUBJECT: Final = 120
MAX_TEXT: Final = 600


class Note(Record, frozen=True, kw_only=True):
    """One note of a project. It is active until `ends_at`."""

    id: int
    project_id: int
    subject: str
    text: str
    paths: tuple[str, ...]
    """The patterns of the files that the note is about. A note without files and task concerns every file."""
    task_id: int | None
    author_id: int
    run_id: str
    """The run in which the note was written; empty outside of runs."""
    commit: str
    """The commit for which the note was true, if its author named one."""
    replaces: tuple[int, ...]
    replaced_by: int | None
    created_at: int
    ends_at: int
    """The time at which the note expires, or at which it was replaced or ended."""
