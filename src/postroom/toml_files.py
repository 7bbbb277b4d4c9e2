"""Explains errors in TOML files, with the table, the name, and the values that a field accepts.

`Meta(extra=...)` of a field adds what msgspec lacks:

    read    a function that turns the value of the file into the value of the field; it raises ValueError
    write   the values that the field accepts, in words: "a text of digits"
    path    whether the value names a file; a relative path begins at the folder of the TOML file
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
from msgspec import inspect

from postroom.contracts.errors import ConfigError

_LARGEST: Final = 1024 * 1024
_LOCATION: Final = re.compile(r" - at `(?:key` in `)?\$\.(\w+)")


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table in a TOML file, for error messages."""

    file: Path
    name: str
    number: int | None = None
    """The position of the table among several with the same name."""

    def within(self, name: str) -> "TableName":
        """Return the name of a table within this table."""
        return TableName(self.file, f"{self.name}.{name}" if self.name else name)

    def error(self, reason: str, *, value: object = None, remedy: str) -> ConfigError:
        """Return an error about the content of this table."""
        where = f"{self.file} [{self.name}]" if self.name else f"{self.file}"
        if self.number is not None:
            where = f"{self.file} [[{self.name}]] number {self.number}"
        return ConfigError(f"{where}: {reason}", value=value, remedy=remedy)

    def refuse(self, reason: str, *, value: object = None, remedy: str) -> NoReturn:
        """Raise an error about the content of this table.

        Raises:
            ConfigError: Always.
        """
        raise self.error(reason, value=value, remedy=remedy)


def read_toml(file: Path, called: str, remedy: str) -> dict[str, Any] | None:
    """Return the content of a TOML file, or None if the file does not exist.

    Error messages name the file as `called`.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or is larger than 1 MiB.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST + 1)
        if len(content) <= _LARGEST:
            return tomllib.loads(content.decode("utf-8"))
        reason = f"the file is larger than {_LARGEST} bytes"
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = f"not TOML: {error if isinstance(error, tomllib.TOMLDecodeError) else type(error).__name__}"
    raise unreadable(file, called, reason, remedy)


def unreadable(file: Path, called: str, reason: str, remedy: str) -> ConfigError:
    """Return the error for a TOML file that cannot be read."""
    return ConfigError(f"{called} {file} cannot be read: {reason}", value=str(file), remedy=remedy)


def check_names(place: TableName, told: Iterable[str], known: Iterable[str]) -> None:
    """Check that a table contains only known names.

    Raises:
        ConfigError: A name is unknown. The remedy suggests the most similar name, or lists all names.
    """
    names = sorted(known)
    for name in told:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
            place.refuse(
                f"no setting is called {name[:100]!r}",
                value=name[:100],
                remedy=f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}",
            )


@lru_cache(maxsize=100)
def fields_of(kind: type[msgspec.Struct]) -> Mapping[str, inspect.Type]:
    """Return the names of the fields that a TOML table may have, each with the type of its value."""
    return {field.encode_name: field.type for field in inspect.type_info(kind).fields}  # type: ignore[attr-defined]  # it is a struct


def extra_of(kind: inspect.Type, name: str) -> Any:
    """Return an entry of a field's `Meta(extra=...)`, or None if the entry does not exist."""
    return (
        kind.extra.get(name) if isinstance(kind := required(kind), inspect.Metadata) and kind.extra else None
    )


def place_of(why: str) -> str | None:
    """Return the field that msgspec rejected, or None if the error concerns the whole struct."""
    match = _LOCATION.search(why)
    return None if match is None else match[1]


def words(kind: inspect.Type) -> str:
    """Return a description of the values that a type accepts."""
    if extra := extra_of(kind, "write"):
        return str(extra)
    match bare(kind):
        case inspect.EnumType(cls=enum):
            return f"one of {', '.join(enum.value for enum in enum)}"
        case inspect.LiteralType(values=values):
            *others, last = map(repr, values)
            return f"{', '.join(others)} or {last}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=least, le=most):
            return f"a whole number from {least} to {most}"
        case inspect.FloatType(ge=least, le=most):
            return f"a number from {least} to {most}"
        case inspect.VarTupleType(item_type=item, min_length=least):
            return f"a list{' that is not empty' if least else ''}, each of it {words(item)}"
        case inspect.DictType(min_length=least):
            return "a table that is not empty" if least else "a table"
        case inspect.StrType():
            return "a text"
    raise NotImplementedError(kind)


def required(kind: inspect.Type) -> inspect.Type:
    """Return a type without None."""
    if isinstance(kind, inspect.UnionType):
        return next(item for item in kind.types if not isinstance(item, inspect.NoneType))
    return kind


def bare(kind: inspect.Type) -> inspect.Type:
    """Return a type without None and without metadata."""
    kind = required(kind)
    return kind.type if isinstance(kind, inspect.Metadata) else kind
