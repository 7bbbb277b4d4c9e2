"""Looks over a whole schema: what shape it has, and what is wrong with it.

Such a look takes as long as it takes, on a connection of its own, and reads the tables themselves: an index
may be what is wrong.
"""

from datetime import timedelta
from typing import Final

from postroom.contracts.errors import StoreError
from postroom.stores import outline
from postroom.stores.outline import Outline
from postroom.stores.postgres.sql_transaction import PostgresTransaction

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


def outline_of(tx: PostgresTransaction) -> Outline:
    """Return the shape of the schema."""
    return outline.outline_of(tx, lambda text: _number(tx, text))


def faults_of(tx: PostgresTransaction) -> list[str]:
    """Return what is wrong with the schema, at most some forty things.

    That is: rows that cannot be read (with checksums, every damaged page), rows that break a CHECK or refer
    to nothing, and indexes that were not built to their end. An index that lacks a row is not found; for
    that PostgreSQL has `amcheck`.

    Raises:
        WrongStore: there are no tables.
    """
    tx.one("store.id")  # a schema without tables has no faults, and is none
    faults = []
    for name, text in tx.all("outline.checks"):
        tx.connection.send("SAVEPOINT look")
        try:
            number = _number(tx, text)
        except StoreError as error:
            tx.connection.send("ROLLBACK TO SAVEPOINT look")
            faults.append(f"{name}: {error.message}")
        else:
            faults += [f"{name}: {number} rows break it"] if number else []
        tx.connection.send("RELEASE SAVEPOINT look")
        if len(faults) == _MOST_FAULTS:
            break
    return faults


def _number(tx: PostgresTransaction, text: str) -> int:
    answer = tx.connection.send(text)
    tx.connection.wait()
    return int(answer.rows[0][0])
