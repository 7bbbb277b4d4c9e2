"""The merge of two projects: its preview and its one change."""

from postroom.contracts.records import Record


class ProjectSize(Record, frozen=True, kw_only=True):
    """The size of a project."""

    agents: int
    messages: int
    reservations: int
    tokens: int
    """Number of named tokens bound to it, whether valid or not."""
