"""The repairs of `postroom doctor --repair`. Every repair is announced first, and loses no data."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from postroom.contracts.errors import PostroomError
from postroom.contracts.mail import Project
from postroom.mail.archive.archive import Archive
from postroom.services.administration import RepairView
from postroom.stores.store import SqlStore
from postroom.stores.stores import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A repair that `postroom doctor --repair` can make."""

    name: str
    """The name of the repaired part, as the checks use it."""
    does: str
    """A sentence that describes the repair."""
    perform: Callable[[], Awaitable[object]]


def plan_index_repair(store: Stores, indexes: Sequence[str]) -> Repair:
    """Return a repair that rebuilds database indexes with missing rows."""
    return Repair(
        name="store reads",
        does=(
            f"rebuild {', '.join(indexes)}, in which rows of their tables are missing: in one "
            "transaction, which an error undoes; other writes wait for it"
        ),
        perform=lambda: store.write_again(indexes),
    )


def plan_record_repair(store: SqlStore, count: int) -> Repair:
    """Return a repair that tries again to read records that this release could not read."""
    return Repair(
        name="records",
        does=f"read again {count} records that this release could not read before; the records do not change",
        perform=store.read_again,
    )


def plan_gap_repair(archive: Archive, project: Project, missing: int) -> Repair:
    """Return a repair that writes missing messages to a project's archive."""
    return Repair(
        name=f"archive {project.slug}",
        does=f"write the {missing} missing messages to the archive; existing files do not change",
        perform=lambda: archive.rebuild(project),
    )


def plan_head_repair(archive: Archive, project: Project) -> Repair:
    """Return a repair that writes the lost HEAD of a project's Git archive."""
    return Repair(
        name=f"archive {project.slug}",
        does="write the lost HEAD of the archive again; nothing else changes",
        perform=lambda: archive.write_head(project),
    )


def another_archive(archive: Archive, project: Project, now: int) -> Repair:
    """Return a repair that replaces a damaged archive with a new archive from the database."""
    aside = f"{project.slug}.git.damaged.{now}"
    return Repair(
        name=f"archive {project.slug}",
        does=f"move the archive, with its history, to {aside}, and write a new archive from the database",
        perform=lambda: archive.replace(project, aside),
    )


async def perform_repairs(repairs: Sequence[Repair], *, dry_run: bool) -> list[RepairView]:
    """Perform repairs one after another, even if a repair fails, and report each result."""
    views: list[RepairView] = []
    for repair in repairs:
        view: RepairView = {"name": repair.name, "does": repair.does, "state": "planned", "detail": ""}
        if not dry_run:
            try:
                await repair.perform()
                view["state"] = "done"
            except PostroomError as error:
                view["state"], view["detail"] = "failed", error.message
        views.append(view)
    return views
