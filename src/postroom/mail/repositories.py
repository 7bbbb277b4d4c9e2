"""Finds the project of a folder, and the new folder of a project whose folder no longer exists."""

import asyncio
import os.path
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from postroom.contracts.mail import Project
from postroom.contracts.runners import Runner, read_runner, written_runner
from postroom.log import get_logger
from postroom.mail.git_identity import (
    Recognition,
    RepositoryFolder,
    is_folder,
    is_of_git,
    recognise,
    same_repository,
    split_identity,
)
from postroom.mail.projects import checked_path, spelling
from postroom.stores.mail.access import MailReads, MailWrites, ProjectReads
from postroom.stores.mail.store import MailStore

_LARGEST_POINTER = 4096
"""Maximum size in bytes of the files in which Git stores the location of a worktree's repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """An absolute path of a file.

    Only projects in the folder `floor` and below can contain the file.
    """

    path: str
    floor: str = ""
    top: str = ""
    """The working tree that contains the file, or "" if there is none."""


def list_locations(path: str, base: str) -> tuple[Location, ...]:
    """Return the absolute locations to which a path in the folder `base` may refer, nearest first.

    Blocks.
    """
    written = os.path.normpath(os.path.join(base, path))  # noqa: PTH118 - the text alone; links come later
    if not os.path.isabs(written):  # noqa: PTH117 - as above
        return ()
    locations: dict[Location, None] = {}
    for item in dict.fromkeys((written, os.path.realpath(written))):
        worktree, main = _find_worktree(Path(item))
        folders = (Path(item), *Path(item).parents)
        top = worktree or next((str(folder) for folder in folders if os.path.lexists(folder / ".git")), "")
        locations[Location(path=item, floor=worktree, top=top)] = None
        if worktree:
            locations[Location(path=main + item[len(worktree) :], top=main)] = None
    return tuple(locations)


def locate(projects: ProjectReads, locations: Sequence[Location]) -> tuple[Project, str] | None:
    """Return the project that contains a file, and the relative path, or None for a file in no project."""
    for location in locations:
        path = Path(location.path)
        for folder in map(str, (path, *path.parents)):
            project = projects.project(folder) or next(
                iter(projects.projects_spelled(spelling(folder))), None
            )
            if project is not None:
                # The root of a project's paths is the working tree that contains the folder, or else the
                # folder.
                around = (
                    projects.project(location.top) if location.top and folder != project.human_key else None
                )
                is_within = around is not None and around.id == project.id and folder.startswith(location.top)
                root = location.top if is_within else folder
                return project, location.path[len(root) :].replace("\\", "/").strip("/")
            if folder == location.floor:
                break
    return None


def _find_worktree(path: Path) -> tuple[str, str]:
    """Return the linked worktree that contains a path, and the main working tree, or two empty texts."""
    for folder in (path, *path.parents):
        pointer = _pointed_at(folder / ".git", "gitdir: ", folder)
        if pointer is None:
            continue
        common = pointer and _pointed_at(Path(pointer) / "commondir", "", Path(pointer))
        if common and Path(common).name == ".git":
            return str(folder), str(Path(common).parent)
        break
    return "", ""


def _pointed_at(file: Path, lead: str, base: Path) -> str | None:
    """Return the path in a pointer file of Git, "" for an invalid file, or None for a missing file."""
    try:
        with file.open("rb") as stream:
            text = os.fsdecode(stream.read(_LARGEST_POINTER)).strip("\r\n")
    except IsADirectoryError:
        return ""
    except OSError:
        return None
    if not text.startswith(lead):
        return ""
    return os.path.normpath(base / text[len(lead) :])


_LOG = get_logger(__name__)
_UNREAD = 100
"""Maximum number of projects whose repositories are identified before a new project is created."""
_READ_AT_ONCE = 2
"""Maximum number of folders read at once. Git may take long, and other work needs threads, too."""
_PAGE = 500


class Repositories:
    """Reads the Git identities of the folders that calls name."""

    def __init__(self, store: MailStore) -> None:
        self._store = store
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)
        self._read: set[int] = set()

    async def recognised(self, key: str, *, may_move: bool) -> Recognition | None:
        """Read the Git identity of a folder whose project or repository is not known yet.

        With `may_move`, a project whose own folder no longer exists is moved to the given folder.
        """
        path, known_project, unread = await self._store.read(lambda tx: self._look(tx, key))
        if known_project is not None and is_of_git(known_project.git_identity):
            is_homeless = may_move and await self._is_homeless(known_project, path)
            if not is_homeless:
                return None
        async with self._reading:
            self._read.update(project.id for project in unread)
            read = await asyncio.to_thread(recognise, path, unread)
        if may_move:
            await self._move_project(known_project, read)
        return read

    def _look(self, tx: MailReads, key: str) -> tuple[str, Project | None, list[Project]]:
        known_project = tx.project(key)
        path = checked_path(key) if known_project is None else key
        known_project = known_project or tx.project(path)
        if known_project is not None:
            is_read = is_of_git(known_project.git_identity) and key != known_project.slug
            return (path if is_read else known_project.human_key), known_project, []
        unread = tx.projects_unidentified(limit=_UNREAD + len(self._read))
        return path, None, [project for project in unread if project.id not in self._read][:_UNREAD]

    @staticmethod
    async def _is_homeless(known: Project, path: str) -> bool:
        return path != known.human_key and not await asyncio.to_thread(is_folder, known.human_key)

    async def _move_project(self, known: Project | None, read: Recognition) -> None:
        """Move a project whose own folder no longer exists to the folder that was read."""
        folder, home = read.folder, read.folder.lasting
        kept_project = known or await self._store.read(lambda tx: match_project(tx, folder, folder.identity))
        if kept_project is None or not await self._is_homeless(kept_project, home):
            return
        if not await asyncio.to_thread(is_folder, home):
            return
        if await self._store.write(lambda tx: move_project(tx, kept_project, home)):
            _LOG.info("project.moved", project=kept_project.slug, gone=kept_project.human_key, folder=home)


def match_project(
    projects: ProjectReads, folder: RepositoryFolder | None, identity: str, *, is_said: bool = False
) -> Project | None:
    """Return the project of a folder or of the folder's repository.

    Subfolders and worktrees of a repository belong to the project of the repository. A renamed folder keeps
    its project.
    """
    folders = () if folder is None else (folder.top, *folder.others)
    by_folder = next(filter(None, map(projects.project, folders)), None)
    if by_folder is not None or not identity:
        return by_folder
    remote, root = ("", "") if is_said else split_identity(identity)
    items = projects.projects_of_repository(identity, remote=remote, root=root)
    same = same_repository(identity, [(project, project.git_identity) for project in items])
    return same if same is None or not is_said or same.git_identity == identity else None


def move_project(tx: MailWrites, known: Project, home: str) -> bool:
    """Move a project and its runners to another folder, and keep the former folder as an alias.

    Return False if another call has moved the project, or if the folder belongs to another project.
    """
    tx.lock_projects([known.id])
    if tx.project_by_id(known.id) != known or tx.project(home) not in (None, known):
        return False
    tx.set_project_folder(known.id, home, spelling=spelling(home))
    after = 0
    while agents := tx.agents(known.id, include_retired=True, limit=_PAGE, after=after):
        after = agents[-1].id
        for agent_id in tx.with_runner([agent.id for agent in agents]):
            kept_runner = tx.runner(agent_id)
            runner = None if kept_runner is None else read_runner(kept_runner.runner)
            if kept_runner is None or not isinstance(runner, Runner):
                continue
            within = runner.cwd.removeprefix(known.human_key)
            if within != runner.cwd and within[:1] in ("", "/", "\\"):
                moved = written_runner(replace(runner, cwd=home + within))
                tx.put_runner(agent_id, moved, declared_by=kept_runner.declared_by, now=tx.now())
    return True
