"""The project of a file on this machine, and the file's path in reservations.

A linked worktree of a Git repository belongs to the project of the main working tree, unless the worktree, or
a folder in it, is a separate project. The targets of links are tried after the written path.
"""

import os.path
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from postroom.contracts.mail import Project
from postroom.mail.projects import spelling
from postroom.stores.mail.access import ProjectReads

_LARGEST_POINTER = 4096
"""Maximum bytes of the files by which Git finds a worktree's repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """One absolute path of a file; projects above `floor` do not count."""

    path: str
    floor: str = ""
    top: str = ""
    """The working tree that contains it; empty without one."""


def locations_of(path: str, base: str) -> tuple[Location, ...]:
    """Return the possible meanings of a path that was written in the folder `base`, the nearest first.

    Reads the disk, so it must not run on the event loop or in a transaction.
    """
    written = os.path.normpath(os.path.join(base, path))  # noqa: PTH118 - the text alone; links come later
    if not os.path.isabs(written):  # noqa: PTH117 - as above
        return ()
    locations: dict[Location, None] = {}
    for one in dict.fromkeys((written, os.path.realpath(written))):
        worktree, main = _worktree_of(Path(one))
        top = worktree or _top_of(Path(one))
        locations[Location(path=one, floor=worktree, top=top)] = None
        if worktree:
            locations[Location(path=main + one[len(worktree) :], top=main)] = None
    return tuple(locations)


def locate(projects: ProjectReads, locations: Sequence[Location]) -> tuple[Project, str] | None:
    """Return the project whose folder contains the file, and the path within it; None without a project."""
    for location in locations:
        for folder in _upwards(location):
            project = projects.project(folder) or next(
                iter(projects.projects_spelled(spelling(folder))), None
            )
            if project is not None:
                root = _root(projects, project, folder, location)
                return project, location.path[len(root) :].replace("\\", "/").strip("/")
    return None


def _root(projects: ProjectReads, project: Project, folder: str, location: Location) -> str:
    """Return the root of a project's paths: the working tree, if the folder is inside one."""
    around = projects.project(location.top) if location.top and folder != project.human_key else None
    is_within = around is not None and around.id == project.id and folder.startswith(location.top)
    return location.top if is_within else folder


def _upwards(location: Location) -> Iterator[str]:
    path = Path(location.path)
    for folder in (path, *path.parents):
        yield str(folder)
        if str(folder) == location.floor:
            return


def _worktree_of(path: Path) -> tuple[str, str]:
    """Return the linked worktree that contains a path, and the main working tree; empty without one."""
    for folder in (path, *path.parents):
        pointer = _pointed_at(folder / ".git", "gitdir: ", folder)
        if pointer is None:
            continue
        common = pointer and _pointed_at(Path(pointer) / "commondir", "", Path(pointer))
        if common and Path(common).name == ".git":
            return str(folder), str(Path(common).parent)
        break
    return "", ""


def _top_of(path: Path) -> str:
    return next((str(one) for one in (path, *path.parents) if os.path.lexists(one / ".git")), "")


def _pointed_at(file: Path, lead: str, base: Path) -> str | None:
    """Return the path in a file of Git, "" if the file has none, or None if the file does not exist."""
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
