"""How two projects become one: what is asked before, and the one change."""

from collections.abc import Mapping
from typing import Protocol

from postroom.contracts.mail import Project
from postroom.contracts.records import Record


class ProjectSize(Record, frozen=True, kw_only=True):
    """How much a project has."""

    agents: int
    messages: int
    reservations: int
    tokens: int
    """Named tokens that are bound to it and still good, or once were."""


class MergingReads(Protocol):
    """What is asked before projects are merged."""

    def project_size(self, project_id: int) -> ProjectSize:
        """Return how much a project has."""
        ...

    def shared_agents(self, project_id: int, other_id: int) -> list[str]:
        """Return the names that agents of both projects have, without regard to case."""
        ...

    def shared_threads(self, project_id: int, other_id: int) -> list[str]:
        """Return the threads that both projects have."""
        ...

    def has_threads_of_runs(self, prefix: str) -> bool:
        """Return whether some thread of runs has a name that begins so."""
        ...

    def archived_records(self, project_id: int) -> dict[int, list[str]]:
        """Return the records whose files tell of a project, by the project that has the file.

        Each is `<kind>:<id>`. Those are all of its own, and messages of other projects to its agents.
        """
        ...


class MergingWrites(MergingReads, Protocol):
    """The change."""

    def merge_projects(
        self, source: Project, target: Project, *, renames: Mapping[int, str], now: int
    ) -> None:
        """Give the target all that the source has, under the ids it has; of that only its names stay.

        Agents, messages, threads, reservations, tokens and aliases are the target's; a thread that both have
        is one. The log with the smaller newest number is put behind the other: who goes on
        after a number of either log misses no entry, and may read some again.

        Agents of the source get new names first, by id in `renames`. Their messages show these; entries of
        the log keep the former names.
        """
        ...
