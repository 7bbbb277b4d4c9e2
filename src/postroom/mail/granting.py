"""Which projects a caller may name: all of them, or the one that its token is bound to.

A bound token is held to its project once, where names become projects: no operation has to think of it, and
another project is to such a caller what a project is that nobody has made.
"""

from typing import Final

from typing_extensions import override

from postroom.contracts.errors import NotPermitted
from postroom.contracts.mail import Project
from postroom.contracts.projects import ProjectWrites
from postroom.contracts.store import MailWrites
from postroom.contracts.tokens import Grant

UNBOUND: Final = "use a token that is bound to no project, or the server's own"


def projects_for(tx: MailWrites, grant: Grant | None) -> ProjectWrites:
    """Return the projects of an open transaction as a caller with this grant may name them."""
    return tx if grant is None or grant.project_id is None else OneProject(tx, grant.project_id)


class OneProject(ProjectWrites):
    """The projects where no other than one has a name, and none can be made."""

    def __init__(self, projects: MailWrites, project_id: int) -> None:
        self._all = projects
        self._project_id = project_id

    @override
    def project(self, key: str) -> Project | None:
        found = self._all.project(key)
        return found if found is not None and found.id == self._project_id else None

    @override
    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        found = self._all.project_by_id(self._project_id)
        return [found] if limit and found is not None and after < self._project_id else []

    @override
    def projects_spelled(self, spelling: str) -> list[Project]:
        return [one for one in self._all.projects_spelled(spelling) if one.id == self._project_id]

    @override
    def counts(self) -> dict[str, int]:
        raise NotPermitted("a token that is bound to a project counts nothing", remedy=UNBOUND)

    @override
    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        raise NotPermitted("a token that is bound to a project makes no other", remedy=UNBOUND)

    @override
    def add_project_alias(self, project_id: int, human_key: str) -> None:
        raise NotPermitted("a token that is bound to a project names no folders", remedy=UNBOUND)
