"""Which store a database is, and how far it reaches."""

from collections.abc import Sequence
from typing import NamedTuple

from postroom.stores.sql_transaction import SqlTransaction


class StoreIdentity(NamedTuple):
    """Which store it is, and how far it reaches."""

    store_id: str | None
    """None until it was given one."""
    newest_message: int
    is_used: bool
    """Whether it has a project or a run."""
    holds_any: bool
    """Whether it has one of the projects that were asked for."""


def identity_of(sql: SqlTransaction, slugs: Sequence[str]) -> StoreIdentity:
    """Look which store it is."""
    [[row], held] = sql.ask(("store.identity", {}), ("store.has_slugs", {"slugs": slugs}))
    return StoreIdentity(row[0], row[1], bool(row[2]), bool(held))
