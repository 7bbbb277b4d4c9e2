"""What a named token lets its holder do: the scopes of an operation, and the one project that a token shows.

A bound token's place of work is narrowed once, where keys become projects: no operation has to think of it,
and another project is to such a caller what a project is that nobody has made.
"""

from typing import Any, Final

from postroom.contracts.errors import InsufficientScope, NotPermitted
from postroom.contracts.mail import Project
from postroom.contracts.tokens import Grant
from postroom.mail.operations import Operation

_UNBOUND: Final = "use a token that is bound to no project, or the server's own"


def refuse_beyond(grant: Grant | None, operation: Operation) -> None:
    """Raise unless a token of this grant may do an operation; without a grant nothing is held back.

    Raises:
        InsufficientScope: it has too few scopes.
        NotPermitted: it is bound to a project, and this is about more than one.
    """
    if grant is None:
        return
    grant.check(operation.needs, operation.name)
    if grant.project_id is not None and not operation.is_of_one_project:
        raise NotPermitted(
            f"{operation.name} is not about one project, and the token `{grant.name}` is bound to one",
            remedy=_UNBOUND,
        )


def may(grant: Grant | None, operation: Operation) -> bool:
    """Return whether a token of this grant may do an operation."""
    try:
        refuse_beyond(grant, operation)
    except (InsufficientScope, NotPermitted):
        return False
    return True


def within(tx: Any, grant: Grant | None) -> Any:
    """Return an open transaction as a caller with this grant may see it."""
    if grant is None or grant.project_id is None:
        return tx
    return _OneProject(tx, grant.project_id)


class _OneProject:
    """A transaction in which no other project has a name, and none can be made; all else is as it is."""

    def __init__(self, tx: Any, project_id: int) -> None:
        self._tx = tx
        self._project_id = project_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def project(self, key: str) -> Project | None:
        """Return the one project if this is its path, alias or slug."""
        found: Project | None = self._tx.project(key)
        return found if found is not None and found.id == self._project_id else None

    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        """Return the one project, or what is behind it."""
        found = self._tx.project_by_id(self._project_id)
        return [found] if limit and found is not None and after < self._project_id else []

    def projects_spelled(self, spelling: str) -> list[Project]:
        """Return the one project if its path has this spelling."""
        return [one for one in self._tx.projects_spelled(spelling) if one.id == self._project_id]

    def counts(self) -> dict[str, int]:
        """Refuse: it would tell of every project."""
        raise NotPermitted("a token that is bound to a project counts nothing", remedy=_UNBOUND)

    def insert_project(self, **_: object) -> Project:
        """Refuse."""
        raise NotPermitted("a token that is bound to a project makes no other", remedy=_UNBOUND)

    def add_project_alias(self, *_: object) -> None:
        """Refuse: the name might be another project's."""
        raise NotPermitted("a token that is bound to a project names no folders", remedy=_UNBOUND)
