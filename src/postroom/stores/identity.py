"""The identity of a database's store, and the newest entries of its logs."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from postroom.stores.sql_transaction import SqlTransaction


class StoreIdentity(NamedTuple):
    """The identity of a store, and the newest entries of its logs."""

    store_id: str | None
    """None until the store gets an id."""
    is_used: bool
    """Whether the store contains a project or a run."""
    logs: Mapping[str, int]
    """The newest log entry of each requested project that exists, by slug."""
    made: Mapping[str, int]
    """The creation time of each of these projects."""
    merged: AbstractSet[str]
    """The requested projects that were merged into others."""


def identity_of(sql: SqlTransaction, slugs: Sequence[str]) -> StoreIdentity:
    """Read the identity of the store."""
    asked = {"slugs": slugs}
    [[row], logs, merged] = sql.ask(
        ("store.identity", {}), ("store.newest_entries", asked), ("store.merged", asked)
    )
    return StoreIdentity(
        row[0],
        bool(row[1]),
        {one[0]: one[1] for one in logs},
        {one[0]: one[2] for one in logs},
        {one[0] for one in merged},
    )
