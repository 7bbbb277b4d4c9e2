"""Brings a schema to the newest state, one numbered step after another, in one transaction."""

import hashlib
import re
from dataclasses import dataclass
from importlib import resources

from postroom.contracts.errors import SchemaTooNew, StoreCorrupt
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.driver import Connection, quoted
from postroom.stores.postgres.statements import load_statements

_FILE = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_SQL = load_statements("migrate")


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


def _shipped() -> tuple[Migration, ...]:
    found = []
    for entry in resources.files("postroom.stores.postgres").joinpath("migrations").iterdir():
        # The stores over this stand on the first two steps; `schema` takes a database on from there.
        if (match := _FILE.match(entry.name)) and int(match[1]) <= 2:
            sql = entry.read_text(encoding="utf-8")
            found.append(Migration(version=int(match[1]), name=match[2], sql=sql))
    return tuple(sorted(found, key=lambda step: step.version))


SHIPPED = _shipped()
"""The steps that this postroom knows, in order."""


async def migrate(database: Database, *, steps: tuple[Migration, ...] = SHIPPED) -> tuple[int, ...]:
    """Apply the missing steps, all or none, and return their numbers; others who do it at once wait.

    Raises:
        SchemaTooNew: the schema has steps that this postroom does not know; nothing was changed.
        StoreCorrupt: a step that was applied differs from the one shipped.
    """
    if not _missing(await database.with_session(_applied), steps):
        return ()
    # A step takes what it takes, and so does waiting for another process that is at it.
    session = await database.connect(answer_within=None, statement_timeout="0", lock_timeout="0")
    try:
        return await _migrated(session, database.schema, steps)
    finally:
        await session.end()


async def _migrated(session: Connection, schema: str, steps: tuple[Migration, ...]) -> tuple[int, ...]:
    await session.run("BEGIN")
    # Held until the transaction ends, also when that is by the end of the process.
    await session.rows(_SQL["lock"], f"postroom migrates {schema}")
    await session.run(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    await session.run(_SQL["ledger"])
    missing = _missing(await _applied(session), steps)
    for step in missing:
        await session.run(step.sql)
        await session.rows(_SQL["record"], step.version, step.name, step.checksum)
    await session.run("COMMIT", commits=True)
    return tuple(step.version for step in missing)


async def _applied(session: Connection) -> dict[int, str]:
    [[there]] = await session.rows(_SQL["has_ledger"])
    return {row[0]: row[1] for row in await session.rows(_SQL["applied"])} if there else {}


def _missing(applied: dict[int, str], steps: tuple[Migration, ...]) -> list[Migration]:
    newest = max((step.version for step in steps), default=0)
    if applied and max(applied) > newest:
        raise SchemaTooNew(
            f"the database has schema {max(applied)}, this postroom knows up to {newest}", value=max(applied)
        )
    for step in steps:
        if step.version in applied and applied[step.version] != step.checksum:
            raise StoreCorrupt(
                f"schema step {step.version} was applied with other contents than the one shipped",
                value=step.version,
                remedy="install the postroom release that made this schema, or restore a backup",
            )
    return [step for step in steps if step.version not in applied]
