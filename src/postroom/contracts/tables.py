"""Records for tables of configuration files, which `postroom.app.tables` reads."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar

from postroom.contracts.clock import duration_of
from postroom.contracts.records import Meta, Record


class Secret(str):
    """A secret text, which `repr` does not reveal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(...)"


class Table(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a configuration file.

    `<name>_env` or `<name>_file` sets a secret field.
    """

    ALSO: ClassVar[Mapping[str, str]] = {}
    """Other names of secrets, keyed by the name of the field."""


Duration = Annotated[timedelta, Meta(extra={"read": duration_of})]
"""A duration with its unit: `90s`, `7d` or `P7D`."""
