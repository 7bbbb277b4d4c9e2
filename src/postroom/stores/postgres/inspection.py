"""Looks over a whole schema: what shape it has, and what is wrong with it.

Such a look takes as long as it takes, on a connection of its own, and reads the tables themselves: an index
may be what is wrong.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from postroom.contracts.errors import StoreError
from postroom.stores import outline
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
"""How the statements begin that PostgreSQL prepares."""


def outline_of(tx: PostgresTransaction) -> Outline:
    """Return the shape of the schema."""
    return outline.outline_of(tx, lambda text: _number(tx, text))


def faults_of(tx: PostgresTransaction) -> list[str]:
    """Return what is wrong with the schema, at most some forty things.

    That is: missing tables and columns, rows that cannot be read (with checksums, every damaged page), rows
    that break a CHECK or refer to nothing, and indexes that were not built to their end. An index that lacks
    a row is not found; for that PostgreSQL has `amcheck`.

    Raises:
        WrongStore: there are no tables.
    """
    tx.one("store.id")  # a schema without tables has no faults, and is none
    texts = [one.text for one in statements("postgres").values() if one.text.startswith(_PREPARABLE)]
    missing = {_refusal(tx, partial(_prepare, tx, text)) for text in texts}
    faults = sorted(missing - {""})[:_MOST_FAULTS]
    for name, text in tx.all("outline.checks"):
        if len(faults) >= _MOST_FAULTS:
            break
        if refused := _refusal(tx, partial(_broken, tx, text)):
            faults.append(f"{name}: {refused}")
    return faults


def _refusal(tx: PostgresTransaction, look: Callable[[], str]) -> str:
    """Return what is wrong by a look, or why the server refuses it; the transaction goes on either way."""
    tx.connection.send("SAVEPOINT look")
    try:
        found = look()
    except StoreError as error:
        tx.connection.send("ROLLBACK TO SAVEPOINT look")
        found = error.message
    tx.connection.send("RELEASE SAVEPOINT look")
    return found


def _prepare(tx: PostgresTransaction, statement: str) -> str:
    """Have the server look up all tables and columns of a statement."""
    tx.connection.send(f"PREPARE look AS {statement}")
    tx.connection.send("DEALLOCATE look")
    tx.connection.wait()
    return ""


def _broken(tx: PostgresTransaction, check: str) -> str:
    """Return how many rows break a check, '' if none does."""
    number = _number(tx, check)
    return f"{number} rows break it" if number else ""


def _number(tx: PostgresTransaction, text: str) -> int:
    answer = tx.connection.send(text)
    tx.connection.wait()
    return int(answer.rows[0][0])
