"""Reads the numbered steps of the database schema, and determines which steps are missing.

Servers of two releases may share a PostgreSQL database, and the newer server migrates it. Therefore a step
keeps everything that the previous release uses, or contains a line that names an earlier step. The release
with that earlier step no longer uses what the new step removes.

    -- after: 0031

A step with this line is applied only if all running servers know step 31. Afterwards, servers that do not
know step 31 are rejected.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from postroom.contracts.errors import SchemaTooNew, StateError, StoreCorrupt, WrongStore

UNFINISHED: Final = 2**31 - 1
"""The number of a pseudo step that marks an unfinished copy into the database; no release knows this step."""
_FILE: Final = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_AFTER: Final = re.compile(r"^-- after: (\d{4})$", re.MULTILINE)
_TABLE: Final = re.compile(
    r"^\s*(CREATE|DROP|ALTER)\s+(?:UNLOGGED\s+|VIRTUAL\s+)?TABLE\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
    r"([\w, ]+?)\s*(?:$|[(;]|\bUSING\b|RENAME\s+TO\s+(\w+)|\b(?:ADD|ALTER|DROP|RENAME)\b)",
    re.MULTILINE | re.IGNORECASE,
)
"""Matches a statement that creates, drops or renames tables; the groups are the verb, the tables and the new
name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A numbered step of the database schema."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the statements as a hexadecimal text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def after(self) -> int:
        """The number of the oldest schema step that a server must know to work after this migration.

        0 allows every server.
        """
        match = _AFTER.search(self.sql)
        return int(match[1]) if match else 0


@cache
def shipped_migrations(engine: str) -> tuple[Migration, ...]:
    """Return the schema steps of this release for `sqlite` or `postgres`, in order."""
    items = []
    for entry in resources.files(f"postroom.stores.{engine}").joinpath("migrations").iterdir():
        if match := _FILE.match(entry.name):
            sql = entry.read_text(encoding="utf-8")
            items.append(Migration(version=int(match[1]), name=match[2], sql=sql))
    return tuple(sorted(items, key=lambda step: step.version))


@cache
def list_tables(engine: str) -> frozenset[str]:
    """Return the tables that a database has after all schema steps of this release."""
    tables = frozenset[str]()
    for step in shipped_migrations(engine):
        for verb, old, new in _TABLE.findall(step.sql):
            names = frozenset(name.strip() for name in old.split(","))
            if verb.upper() == "CREATE":
                tables |= names
            elif new or verb.upper() == "DROP":
                tables = (tables - names) | ({new} if new else set())
    return tables


def missing_tables(engine: str, there: Collection[str], newest: int) -> list[str]:
    """Return a problem for each table that this release uses but the database lacks.

    `newest` is the last applied schema step. The result is empty unless `newest` is the last step of this
    release.
    """
    if newest != newest_of(shipped_migrations(engine)):
        return []
    return [f"table {name} is missing" for name in sorted(list_tables(engine).difference(there))]


def newest_of(steps: Sequence[Migration]) -> int:
    """Return the number of the last schema step, or 0 if `steps` is empty."""
    return max((step.version for step in steps), default=0)


def missing_migrations(
    applied: Mapping[int, str], known: Sequence[Migration], *, needed: int | None = None
) -> list[Migration]:
    """Return the schema steps that must be applied; `applied` contains the checksum of each applied step.

    A release that knows the step `needed` may use a database with unknown newer steps.

    Raises:
        SchemaTooNew: The database has unknown steps, and this release can no longer use it.
        StoreCorrupt: An applied step differs from the step in this release.
        WrongStore: A copy into the database is unfinished.
    """
    if UNFINISHED in applied:
        raise WrongStore(
            "a copy to this database is incomplete",
            remedy="run the same `postroom database copy` again, which continues the copy",
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
                remedy="install the release that created this database, or restore a backup",
            )
    return [step for step in known if step.version not in applied]


def refuse_old(applied: Mapping[int, str], engine: str) -> None:
    """Check that a database has exactly the schema steps of this release.

    Raises:
        StateError: The database lacks a step. SchemaTooNew, StoreCorrupt, WrongStore: As for
            `missing_migrations`.
    """
    if missing := missing_migrations(applied, shipped_migrations(engine)):
        raise StateError(
            f"the database was written by an older release: schema step {missing[0].version} has not been "
            "applied",
            value=missing[0].version,
            remedy="start `postroom up` from this release once with this database, then stop it",
        )
