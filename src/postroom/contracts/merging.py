"""How two projects become one: what is asked before, and the one change."""

from postroom.contracts.records import Record


class ProjectSize(Record, frozen=True, kw_only=True):
    """How much a project has."""

    agents: int
    messages: int
    reservations: int
    tokens: int
    """Named tokens that are bound to it and still good, or once were."""
