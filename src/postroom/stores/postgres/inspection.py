"""Inspects a whole schema: its outline, and its faults.

An inspection has no time limit, uses its own connection, and reads the tables themselves, because an index
may be damaged.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from postroom.contracts.errors import StoreError
from postroom.stores import outline
from postroom.stores.migrations import missing_tables
from postroom.stores.outline import Outline
from postroom.stores.postgres.sql_transaction import PostgresTransaction
from postroom.stores.statements import statements

WITHIN: Final = timedelta(hours=6)
SETTINGS: Final = {
    "statement_timeout": "0",
    "enable_seqscan": "on",
    "enable_hashjoin": "on",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
}
_MOST_FAULTS: Final = 40
_PREPARABLE: Final = ("DELETE", "INSERT", "SELECT", "UPDATE", "WITH")
"""First words of statements that PostgreSQL can prepare."""


def outline_of(tx: PostgresTransaction) -> Outline:
    """Return the outline of the schema."""
    return outline.outline_of(tx, lambda text: _number(tx, text))


def faults_of(tx: PostgresTransaction) -> list[str]:
    """Return the faults of the schema, at most about forty.

    Faults are missing tables and columns, unreadable rows (with checksums, every damaged page), rows that
    break a CHECK or a reference, and indexes whose build did not finish. A missing row in an index is not
    found; PostgreSQL has `amcheck` for that.

    Raises:
        WrongStore: There are no tables.
    """
    tx.one("store.id")  # a schema without tables would have no faults
    texts = [one.text for one in statements("postgres").values() if one.text.startswith(_PREPARABLE)]
    there = [name for kind, name, _ in tx.all("outline.schema") if kind == "table"]
    faults = missing_tables("postgres", there, max((row[0] for row in tx.all("outline.steps")), default=0))
    refused = {_refusal(tx, partial(_prepare, tx, text)) for text in texts} - {""}
    named = [f'"{fault.split()[1]}" does not exist' for fault in faults]
    faults += sorted(one for one in refused if not any(name in one for name in named))
    del faults[_MOST_FAULTS:]
    for name, text in tx.all("outline.checks"):
        if len(faults) >= _MOST_FAULTS:
            break
        if broken := _refusal(tx, partial(_broken, tx, text)):
            faults.append(f"{name}: {broken}")
    return faults


def _refusal(tx: PostgresTransaction, look: Callable[[], str]) -> str:
    """Return the fault that a query finds, or why the server refuses it; the transaction continues."""
    tx.connection.send("SAVEPOINT look")
    try:
        found = look()
    except StoreError as error:
        tx.connection.send("ROLLBACK TO SAVEPOINT look")
        found = error.message
    tx.connection.send("RELEASE SAVEPOINT look")
    return found


def _prepare(tx: PostgresTransaction, statement: str) -> str:
    """Make the server look up all tables and columns of a statement."""
    tx.connection.send(f"PREPARE look AS {statement}")
    tx.connection.send("DEALLOCATE look")
    tx.connection.wait()
    return ""


def _broken(tx: PostgresTransaction, check: str) -> str:
    """Return the number of rows that break a check as text, '' if none does."""
    number = _number(tx, check)
    return f"{number} rows break it" if number else ""


def _number(tx: PostgresTransaction, text: str) -> int:
    answer = tx.connection.send(text)
    tx.connection.wait()
    return int(answer.rows[0][0])
