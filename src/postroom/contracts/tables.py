"""Configuration file tables as records, which `postroom.app.tables` reads."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar

from postroom.contracts.clock import duration_of
from postroom.contracts.records import Meta, Record


class Secret(str):
    """A text that is hidden in its own `repr` and in the `repr` of a record that contains it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(...)"


class Table(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a configuration file, in which `<name>_env` or `<name>_file` provides a `Secret`.

    `__post_init__` checks the fields against each other. If they are invalid, it raises ConfigError, or a
    ValueError whose message names the field in backquotes but not its value.
    """

    ALSO: ClassVar[Mapping[str, str]] = {}
    """Other names for secrets, keyed by the name of the field."""


Duration = Annotated[timedelta, Meta(extra={"read": duration_of})]
"""A duration with its unit: `90s`, `7d` or `P7D`."""
