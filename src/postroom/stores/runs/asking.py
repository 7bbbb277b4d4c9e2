"""Looks that are asked together, each under a name of its own, so that they take one round trip."""

from collections.abc import Mapping
from typing import Any

from postroom.stores.sql_transaction import Row, SqlTransaction, Values

Looks = dict[tuple[Any, ...], tuple[str, Values]]
"""Statements and their values, by what is asked: a word, and of what."""
Found = Mapping[tuple[Any, ...], list[Row]]
"""The rows that each look gave; what was not asked is not there."""


def asked(sql: SqlTransaction, looks: Looks) -> Found:
    """Ask them all and return what each found."""
    return dict(zip(looks, sql.ask(*looks.values()), strict=True)) if looks else {}
