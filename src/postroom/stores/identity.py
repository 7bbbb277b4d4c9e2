"""Which store a database is, and how far it reaches."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from postroom.stores.sql_transaction import SqlTransaction


class StoreIdentity(NamedTuple):
    """Which store it is, and how far it reaches."""

    store_id: str | None
    """None until it was given one."""
    is_used: bool
    """Whether it has a project or a run."""
    logs: Mapping[str, int]
    """The newest entry in the log of each project that was asked for, by slug; of those that it has."""
    made: Mapping[str, int]
    """When each of them was made."""
    merged: AbstractSet[str]
    """Those that were asked for and are other projects now."""


def identity_of(sql: SqlTransaction, slugs: Sequence[str]) -> StoreIdentity:
    """Look which store it is."""
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
