"""Finds projects by path or slug, and checks paths.

If a token is bound to a project, this is enforced where names are resolved to projects. Therefore, no
operation has to check it, and other projects do not exist for such a caller.
"""

import hashlib
import re
from itertools import chain, count
from typing import Final

from typing_extensions import override

from postroom.contracts.errors import InvalidPath, NotPermitted, UnknownProject
from postroom.contracts.mail import Agent, Project
from postroom.contracts.plain_answers import HUMAN
from postroom.contracts.tokens import UNBOUND
from postroom.mail.names import nearest, shown
from postroom.stores.mail.access import MailWrites, ProjectReads, ProjectWrites

_DRIVE = re.compile(r"^([A-Za-z]):[\\/]")
_BARE_DRIVE = re.compile(r"[A-Za-z]:")
_MOUNTED_DRIVE = re.compile(r"^/mnt/([A-Za-z])(/|$)")
_WSL_SHARE = re.compile(r"^//wsl(?:\.localhost|\$)/[^/]+(/.*)$", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"<[^<>/\\]*>|\bYOUR[_-]|\bPROJECT[_-]?(PATH|KEY|NAME)\b|\{[^{}/\\]*\}|\$\{?[A-Z_]+"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

MAX_PATH = 4_096
PEOPLE_KEY = "/postroom/people"
PEOPLE_SLUG = "postroom-people"
"""The slug of the project of people, which has no folder. No other project can get this slug."""
VISITOR: Final = "visitor"
"""The `program` of a person who wrote from a chat, and whom the operator has not added."""
CHAT: Final = "chat:"
PERSONS: Final = (HUMAN, CHAT)
"""The prefixes of the addresses of people and chats."""


def checked_path(human_key: str) -> str:
    """Return an absolute path without double or trailing separators.

    Raises:
        InvalidPath: The path is relative, is a placeholder, or contains `..` or control characters.
    """
    if not human_key.strip():
        raise _invalid(human_key, "is empty")
    if len(human_key) > MAX_PATH:
        raise _invalid(human_key, f"is longer than {MAX_PATH} characters")
    if _CONTROL.search(human_key):
        raise _invalid(human_key, "contains control characters")
    if _PLACEHOLDER.search(human_key):
        raise _invalid(human_key, "is a placeholder")
    if not (human_key.startswith(("/", "\\\\")) or _DRIVE.match(human_key)):
        raise _invalid(human_key, "is not an absolute path")
    windows = not human_key.startswith("/")
    separator = "\\" if windows else "/"
    parts = re.split(r"[\\/]+" if windows else "/+", human_key)
    if ".." in re.split(r"[\\/]", human_key):  # both separators: other servers may split at either one
        raise _invalid(human_key, "contains '..'")
    lead = "\\\\" if human_key.startswith("\\\\") else ("" if windows else "/")
    named = separator.join(part for part in parts if part not in ("", "."))
    if windows and not named:
        raise _invalid(human_key, "is not an absolute path")
    if not lead and _BARE_DRIVE.fullmatch(named):
        return f"{named}{separator}"  # a drive without a slash is not an absolute path
    return lead + named


def _invalid(path: str, why: str) -> InvalidPath:
    return InvalidPath(
        f"{shown(path)} {why}",
        value=path,
        remedy="give the absolute path of the project's folder, for example /home/me/project",
    )


def spelling(path: str) -> str:
    """Return the normalised form of a path.

    Windows, UNC and WSL paths to one folder have the same normalised form.
    """
    plain = path.replace("\\", "/") if not path.startswith("/") else path
    if share := _WSL_SHARE.match(plain):
        plain = share[1]
    if mounted := _MOUNTED_DRIVE.match(plain):
        plain = f"{mounted[1]}:/{plain[len(mounted[0]) :]}"
    if _DRIVE.match(plain) or plain.startswith("//"):
        return plain.casefold().rstrip("/")
    return plain


def make_slug(path: str) -> str:
    """Return the slug for a path, which consists of lower-case letters, digits and single hyphens."""
    slug = re.sub(r"[^a-z0-9]+", "-", path.casefold()).strip("-")
    return slug[:120].strip("-") or "root"


def free_slug(projects: ProjectReads, path: str) -> str:
    """Return an unused slug for a path.

    If another project has the usual slug, a hash is added.
    """
    slug = make_slug(path)
    hashed = f"{slug}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    tried = chain((slug, hashed), (f"{hashed}-{number}" for number in count(2)))
    kept_values = set() if path == PEOPLE_KEY else {PEOPLE_SLUG}
    return next(free for free in tried if free not in kept_values and projects.project(free) is None)


def find_project(projects: ProjectReads, key: str) -> Project:
    """Return the project with a given path or slug.

    Raises:
        UnknownProject: No project has the name. The error lists the most similar names.
        InvalidPath: The key is a placeholder or contains control characters.
    """
    if project := projects.project(key):
        return project
    if key.startswith(("/", "\\\\")) or _DRIVE.match(key) or _PLACEHOLDER.search(key) or _CONTROL.search(key):
        path = checked_path(key)
        if project := projects.project(path):
            return project
    known_projects = projects.projects(limit=1_000)
    names = [name for project in known_projects for name in (project.slug, project.human_key)]
    close = nearest(key, names)
    raise UnknownProject(
        f"no project is named {shown(key)}" + (f"; similar names: {', '.join(close)}" if close else ""),
        value=key,
        details={"nearest": close},
    )


def format_address(name: str, slug: str, home_slug: str) -> str:
    """Return the address of an agent for agents of `home_slug`: `name`, `name@slug` or `human:name`."""
    if slug == PEOPLE_SLUG:
        return f"{HUMAN}{name}"
    return name if slug == home_slug else f"{name}@{slug}"


def full_address(project: Project, agent: Agent) -> str:
    """Return the address of an agent or a person that is valid in every project."""
    return format_address(agent.name, project.slug, "")


class OneProject(ProjectWrites):
    """A restricted view of the projects, which shows a single project and cannot create projects."""

    def __init__(self, projects: MailWrites, project_id: int) -> None:
        self._all = projects
        self._project_id = project_id

    @override
    def project(self, key: str) -> Project | None:
        project = self._all.project(key)
        return project if project is not None and project.id == self._project_id else None

    @override
    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        project = self._all.project_by_id(self._project_id)
        return [project] if limit and project is not None and after < self._project_id else []

    @override
    def projects_spelled(self, spelling: str) -> list[Project]:
        return [project for project in self._all.projects_spelled(spelling) if project.id == self._project_id]

    @override
    def projects_of_repository(self, identity: str, *, remote: str = "", root: str = "") -> list[Project]:
        projects = self._all.projects_of_repository(identity, remote=remote, root=root)
        return [project for project in projects if project.id == self._project_id]

    @override
    def projects_unidentified(self, *, limit: int) -> list[Project]:
        return []

    @override
    def counts(self, *, unread: bool = True) -> dict[str, int]:
        raise NotPermitted("a token that is bound to a project cannot count records", remedy=UNBOUND)

    @override
    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        raise NotPermitted("a token that is bound to a project cannot create another", remedy=UNBOUND)

    @override
    def add_project_alias(self, project_id: int, human_key: str) -> None:
        raise NotPermitted(
            "a token that is bound to a project cannot use a folder as its name", remedy=UNBOUND
        )
