"""Tables of configuration files as records, which `postroom.app.tables` reads."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar

from postroom.contracts.durations import duration_of
from postroom.contracts.records import Meta, Record


class Secret(str):
    """A text that no `repr` shows, and so no record that holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(...)"


class Table(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a configuration file, where a `Secret` stands as `<name>_env` or `<name>_file`.

    `__post_init__` checks how the fields fit together. It raises ConfigError, or ValueError that quotes the
    field in backquotes and not its value.
    """

    ALSO: ClassVar[Mapping[str, str]] = {}
    """Other names of secrets, and the field that each stands for."""


Duration = Annotated[timedelta, Meta(extra={"read": duration_of})]
"""Written with its unit: `90s`, `7d` or `P7D`."""
