"""The shape of a database without what is in it: its schema, how many rows, which runs wait.

Reads a database of any schema, so that one can be told about that this release cannot open.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postroom.stores.sql_transaction import SqlTransaction

MOST_RUNS: Final = 500
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
    """What is told of a database; no text that anybody wrote is in it."""

    schema: str
    steps: list[tuple[int, str, int]]
    """Number, name and instant of each step that was applied."""
    rows: dict[str, int]
    """How many rows each table has."""
    states: dict[str, int]
    """How many dispatches are in each state."""
    queue: list[dict[str, object]]
    """Dispatches that are open or given up, the longest unchanged first, at most 500."""


def outline_of(tx: SqlTransaction, number: Callable[[str], int]) -> Outline:
    """Look at a database; a part that its schema does not have yet is empty.

    `number` runs the text of a statement that gives one number.
    """
    schema = tx.all("outline.schema")
    tables = [name for kind, name, _ in schema if kind == "table"]
    has_runs = "run_dispatches" in tables
    queue = tx.all("outline.queue", {"limit": MOST_RUNS}) if has_runs else []
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
