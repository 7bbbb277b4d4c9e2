"""The numbered steps of a schema: how they are read, and which are missing.

Servers of two releases may share a database of PostgreSQL, and the newer of them migrates it. So a step
either leaves everything there that the release before it uses, or names in a line of its own the step with
which the code stopped to use what it takes away:

    -- after: 0031

Such a step is applied when no server is up that lacks step 31, and lets none of these in afterwards.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from postroom.contracts.errors import SchemaTooNew, StateError, StoreCorrupt, WrongStore

UNFINISHED: Final = 2**31 - 1
"""Stands among the applied steps while a copy into the database is not finished; no release knows it."""
_FILE: Final = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_AFTER: Final = re.compile(r"^-- after: (\d{4})$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step: its number, its name and its statements."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the statements, by which a changed step is noticed."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def after(self) -> int:
        """The step that a server must know to use the database from this one on; 0: any server may use it."""
        found = _AFTER.search(self.sql)
        return int(found[1]) if found else 0


@cache
def shipped_migrations(engine: str) -> tuple[Migration, ...]:
    """Return the steps that this postroom knows for `sqlite` or `postgres`, in order."""
    found = []
    for entry in resources.files(f"postroom.stores.{engine}").joinpath("migrations").iterdir():
        if match := _FILE.match(entry.name):
            sql = entry.read_text(encoding="utf-8")
            found.append(Migration(version=int(match[1]), name=match[2], sql=sql))
    return tuple(sorted(found, key=lambda step: step.version))


def newest_of(steps: Sequence[Migration]) -> int:
    """Return the number of the last step; 0 where there is none."""
    return max((step.version for step in steps), default=0)


def missing_migrations(
    applied: Mapping[int, str], known: Sequence[Migration], *, needed: int | None = None
) -> list[Migration]:
    """Return the steps that are still to be applied; `applied` has the checksum of each that was.

    Who knows step `needed` may use the database, though it has newer ones; without it, none may be newer.

    Raises:
        SchemaTooNew: the database has steps that this postroom does not know, and is not for it any more.
        StoreCorrupt: a step that was applied differs from the one shipped.
        WrongStore: a copy into the database is not finished.
    """
    if UNFINISHED in applied:
        raise WrongStore(
            "a copy to this database is incomplete",
            remedy="run the same `postroom database copy` again: it continues the copy",
        )
    newest, there = newest_of(known), max(applied, default=0)
    if there > newest and (needed is None or needed > newest):
        raise SchemaTooNew(
            f"the database has schema {there}, but this release supports up to {newest}", value=there
        )
    for step in known:
        if step.version in applied and applied[step.version] != step.checksum:
            raise StoreCorrupt(
                f"schema step {step.version} differs from the step that was applied",
                value=step.version,
                remedy="install the release that made this database, or restore a backup",
            )
    return [step for step in known if step.version not in applied]


def refuse_old(applied: Mapping[int, str], engine: str) -> None:
    """Refuse a database that lacks a step of this release, or that this release does not know.

    Raises:
        StateError: it lacks a step.
        SchemaTooNew, StoreCorrupt, WrongStore: as of `missing_migrations`.
    """
    if missing := missing_migrations(applied, shipped_migrations(engine)):
        raise StateError(
            f"the database is from an older release: it lacks schema step {missing[0].version}",
            value=missing[0].version,
            remedy="start `postroom up` of this release once with this database, then stop it",
        )
