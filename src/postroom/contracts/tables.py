"""Tables of configuration files as records, which `postroom.app.tables` reads."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar

from postroom.contracts.clock import duration_of
from postroom.contracts.records import Meta, Record


class Secret(str):
    """A text that neither its own `repr` nor that of a record shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(...)"


class Table(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a configuration file, in which `<name>_env` or `<name>_file` provides a `Secret`.

    `__post_init__` checks the fields against each other. It raises ConfigError, or a ValueError that quotes
    the field in backquotes and omits its value.
    """

    ALSO: ClassVar[Mapping[str, str]] = {}
    """Other names of secrets, by the field that each stands for."""


Duration = Annotated[timedelta, Meta(extra={"read": duration_of})]
"""A duration with its unit: `90s`, `7d` or `P7D`."""
