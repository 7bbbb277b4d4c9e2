"""Projects by their names: what a caller may be held to is apart from what belongs to a project."""

from typing import Protocol

from postroom.contracts.mail import Project


class ProjectReads(Protocol):
    """Look-ups of projects by name, and what tells of every project: a caller may be held to one of them."""

    def project(self, key: str) -> Project | None:
        """Return the project with this path, alias or slug."""
        ...

    def projects_spelled(self, spelling: str) -> list[Project]:
        """Return the projects whose path has this spelling, oldest first."""
        ...

    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        """Return projects by id, those after `after`."""
        ...

    def counts(self) -> dict[str, int]:
        """Return how many rows each kind of record has, for pages and metrics; may be slow or rounded."""
        ...


class ProjectWrites(ProjectReads, Protocol):
    """New projects, and new names for them."""

    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        """Store a project whose path and slug nobody has."""
        ...

    def add_project_alias(self, project_id: int, human_key: str) -> None:
        """Let another spelling of the path name the project."""
        ...
