"""Describes a database without its data: its schema, the numbers of its rows, and its waiting runs.

The schema may have any version, so that a database can be described that this release cannot open.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

from postroom.stores.sql_transaction import SqlTransaction


class StoreIdentity(NamedTuple):
    """The id of a store, and the newest log entries of its projects."""

    store_id: str | None
    """The id of the store, or None until it gets one."""
    is_used: bool
    """Whether the store contains a project or a run."""
    logs: Mapping[str, int]
    """The number of the newest log entry of each requested project that exists, keyed by slug."""
    made: Mapping[str, int]
    """The creation time of each requested project."""
    merged: AbstractSet[str]
    """The requested projects that were merged into others."""


def read_identity(sql: SqlTransaction, slugs: Sequence[str]) -> StoreIdentity:
    """Return the identity of a store, with the log positions of the projects `slugs`."""
    parameters = {"slugs": slugs}
    [[row], logs, merged] = sql.ask(
        ("store.identity", {}), ("store.newest_entries", parameters), ("store.merged", parameters)
    )
    return StoreIdentity(
        row[0],
        bool(row[1]),
        {log[0]: log[1] for log in logs},
        {log[0]: log[2] for log in logs},
        {item[0] for item in merged},
    )


MAX_RUNS: Final = 500
_COLUMNS: Final = (
    "dispatch_id",
    "run_id",
    "status",
    "attempts",
    "max_attempts",
    "created_at",
    "available_at",
    "updated_at",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A description of a database without any text that people or agents wrote."""

    schema: str
    steps: list[tuple[int, str, int]]
    """The number, the name and the time of each applied step."""
    rows: dict[str, int]
    """The number of rows, keyed by table."""
    states: dict[str, int]
    """The number of dispatches, keyed by state."""
    queue: list[dict[str, object]]
    """At most 500 open dispatches and dead letters; the least recently changed comes first."""


def read_outline(tx: SqlTransaction, number: Callable[[str], int]) -> Outline:
    """Return a description of a database, which may have any schema version.

    `number` executes an SQL query and returns the number that it selects.
    """
    schema = tx.all("outline.schema")
    tables = [name for kind, name, _ in schema if kind == "table"]
    has_runs = "run_dispatches" in tables
    queue = tx.all("outline.queue", {"limit": MAX_RUNS}) if has_runs else []
    return Outline(
        schema="".join(f"{text};\n" for _, _, text in schema),
        steps=[(row[0], row[1], row[2]) for row in tx.all("outline.steps")]
        if "schema_migrations" in tables
        else [],
        rows={name: number(_count(name)) for name in tables},
        states=dict(map(tuple, tx.all("outline.states"))) if has_runs else {},
        queue=[dict(zip(_COLUMNS, row, strict=True)) for row in queue],
    )


def _count(table: str) -> str:
    named = table.replace('"', '""')
    return f'SELECT count(*) FROM "{named}"'  # noqa: S608 - from the schema
