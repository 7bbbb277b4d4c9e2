"""Reads tables of TOML files into structs: one place decides what is refused, and in which words.

A struct declares the names of its table with their types, bounds and defaults, and the tables within it. What
msgspec cannot say stands in `Meta(extra=...)` of a field:

    read    a function that turns the value of the file into the value of the field; it raises ValueError
    write   the values that the field accepts, in words: "a text of digits"
    path    whether the value names a file; a relative path begins at the folder of the TOML file
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from postroom.app import places
from postroom.app.gateway_secrets import Place, secret_names, take_secret
from postroom.app.tokens import redact
from postroom.contracts.errors import ConfigError
from postroom.contracts.tables import Secret, Table

T = TypeVar("T", bound=Table)
_PASSWORD: Final = re.compile(r"://[^/\s]*@")
_LOCATION: Final = re.compile(r" - at `(?:key` in `)?\$\.(\w+)")
_LARGEST: Final = 1024 * 1024
_NAMED: Final = re.compile(r"`(\w+)`")


def read_toml(file: Path, called: str, remedy: str) -> dict[str, Any] | None:
    """Return the content of a TOML file; None if the file is not there. An error calls it `called`.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or is larger than 1 MiB.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST + 1)
        if len(content) <= _LARGEST:
            return tomllib.loads(content.decode("utf-8"))
        reason = f"it is larger than {_LARGEST} bytes"
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = f"not TOML: {error if isinstance(error, tomllib.TOMLDecodeError) else type(error).__name__}"
    raise unreadable(file, called, reason, remedy)


def unreadable(file: Path, called: str, reason: str, remedy: str) -> ConfigError:
    """Return the error that a TOML file cannot be read."""
    return ConfigError(f"{called} {file} cannot be read: {reason}", value=str(file), remedy=remedy)


def read_table(place: Place, told: object, kind: type[T], environment: Mapping[str, str]) -> T:
    """Return the struct of a table, with its secrets and the tables within it.

    Raises:
        ConfigError: The table says something wrong. The error names the place, the name and the remedy.
    """
    return _converted(place, check_table(place, told, kind), kind, environment)


def check_table(place: Place, told: object, kind: type[Table]) -> dict[str, Any]:
    """Refuse unknown names and secrets in a table and in those within it; look up and convert nothing.

    Raises:
        ConfigError: As for `read_table`.
    """
    secrets = _secrets(kind)
    if not isinstance(told, dict):
        ways = f" with {secret_names(secrets)[0]}" if secrets and len(fields_of(kind)) == 1 else ""
        place.refuse("it is no table", value=place.name, remedy=f"write it as [{place.name}]{ways}")
    rest = dict(told)
    for name in secrets:
        take_secret(place, rest, name, {}, read=False)
    fields = fields_of(kind)
    check_names(place, rest, [*(fields.keys() - set(secrets)), *secret_names(secrets)])
    for name, value in rest.items():
        inner, is_many = _table_in(fields[name])
        if inner is None:
            continue
        within = place.within(name)
        if not is_many:
            check_table(within, value, inner)
        elif isinstance(value, dict):
            for key, one in value.items():
                check_table(within.within(key), one, inner)
        else:
            within.refuse("it is no table", value=name, remedy=f"write [{within.name}.<name>]")
    return told


def check_names(place: Place, told: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that a table does not have.

    Raises:
        ConfigError: A name is unknown. The remedy names the nearest one, or all.
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
    """Return the names that a table may have, each with its type."""
    return {field.encode_name: field.type for field in inspect.type_info(kind).fields}  # type: ignore[attr-defined]  # it is a struct


def extra_of(kind: inspect.Type, name: str) -> Any:
    """Return what a field says of itself in `Meta(extra=...)`; None without it."""
    return (
        kind.extra.get(name) if isinstance(kind := _required(kind), inspect.Metadata) and kind.extra else None
    )


def shown(value: object) -> str:
    """Return a value of a file as an error shows it, without tokens and passwords."""
    return _PASSWORD.sub("://***@", redact(str(value)))[:200]


def place_of(why: str) -> str | None:
    """Return the name of the field that msgspec refused; None if the struct refused itself."""
    found = _LOCATION.search(why)
    return None if found is None else found[1]


def words(kind: inspect.Type) -> str:
    """Return the values that a type accepts, in words."""
    if said := extra_of(kind, "write"):
        return str(said)
    match _bare(kind):
        case inspect.EnumType(cls=enum):
            return f"one of {', '.join(one.value for one in enum)}"
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


def _required(kind: inspect.Type) -> inspect.Type:
    """Return a type without None."""
    if isinstance(kind, inspect.UnionType):
        return next(one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind


def _bare(kind: inspect.Type) -> inspect.Type:
    """Return a type without None and without what is said of it."""
    kind = _required(kind)
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _table_in(kind: inspect.Type) -> tuple[type[Table] | None, bool]:
    """Return the table that a field is, and whether the field holds several of it by name."""
    found = _bare(kind)
    is_many = isinstance(found, inspect.DictType)
    if isinstance(found, inspect.DictType):
        found = found.value_type
    is_table = isinstance(found, inspect.StructType) and issubclass(found.cls, Table)
    return (found.cls if is_table else None, is_many)  # type: ignore[attr-defined]  # checked


def _secrets(kind: type[Table]) -> list[str]:
    """Return the names of the secrets of a table; those that stand for another come last."""
    own = (name for name, one in fields_of(kind).items() if getattr(_bare(one), "cls", None) is Secret)
    return [*own, *kind.ALSO]


def _converted(place: Place, told: Mapping[str, Any], kind: type[T], environment: Mapping[str, str]) -> T:
    rest, fields = dict(told), fields_of(kind)
    for name in _secrets(kind):
        secret, target = take_secret(place, rest, name, environment), kind.ALSO.get(name, name)
        if secret is None:
            continue
        if target in rest:
            place.refuse(f"{name} and {target} are the same here", value=name, remedy="keep one of them")
        rest[target] = secret
    for name, value in rest.items():
        inner, is_many = _table_in(fields[name])
        within = place.within(name)
        if inner is None:
            rest[name] = _value(place, name, value, fields[name], environment)
        elif is_many:
            tables = {
                key: _converted(within.within(key), one, inner, environment) for key, one in value.items()
            }
            rest[name] = tables
        else:
            rest[name] = _converted(within, value, inner, environment)
    try:
        return msgspec.convert(rest, kind)
    except ConfigError as error:  # the struct refuses itself
        raise place.error(error.message, value=error.value, remedy=error.remedy) from error
    except msgspec.ValidationError as error:
        _refuse_invalid(place, told, rest, kind, str(error))
        raise


def _value(place: Place, name: str, value: Any, kind: inspect.Type, environment: Mapping[str, str]) -> object:
    """Return the value that a field takes from the file."""
    if extra_of(kind, "path") and isinstance(value, str) and value:
        return str(places.absolute(value, environment, base=place.file.parent))
    read = extra_of(kind, "read")
    if read is None:
        return value
    try:
        return read(value)
    except ValueError as error:
        told = shown(value)
        place.refuse(f"{name} is {told!r}: {error}", value=told, remedy=f"correct or remove {name}")


def _refuse_invalid(
    place: Place, given: Mapping[str, Any], told: Mapping[str, Any], kind: type[Table], why: str
) -> None:
    """Refuse the value that msgspec refused, in words of the file; `told` has the `given` values as read.

    Raises:
        ConfigError: Always.
    """
    fields, name = fields_of(kind), place_of(why)
    if why.startswith("Object missing"):
        [name] = _NAMED.findall(why)
        place.refuse(f"{name} is missing", value=name, remedy=f"add {name}: {words(fields[name])}")
    if name is None:
        names = _NAMED.findall(why)
        remedy = f"correct {names[0]}" if names else "correct the table"
        place.refuse(why, value=names[0] if names else None, remedy=remedy)
    value, wanted = told[name], fields[name]
    bare = _bare(wanted)
    if isinstance(bare, inspect.DictType) and isinstance(value, dict) and value:
        place = place.within(name)
        annotation = next(one.type for one in msgspec.structs.fields(kind) if one.encode_name == name)
        given = given[name]
        name = next(key for key, one in value.items() if not _fits({key: one}, annotation))
        if "at `key`" in why:
            accepted = words(bare.key_type)
            place.refuse(
                f"{name!r} is not accepted: write {accepted}", value=name, remedy=f"correct or remove {name}"
            )
        value, wanted = value[name], bare.value_type
    _refuse(place, name, given.get(name, value), wanted)


def _refuse(place: Place, name: str, value: object, wanted: inspect.Type) -> None:
    item = _bare(wanted)
    if isinstance(_bare(item.item_type) if isinstance(item, inspect.VarTupleType) else item, inspect.StrType):
        told = f"{name} must be {words(wanted)}"  # a text may be a secret in the wrong place: it is not shown
        place.refuse(told, value=name, remedy=f"correct or remove {name}")
    told = shown(value)
    place.refuse(f"{name} is {told!r}: write {words(wanted)}", value=told, remedy=f"correct or remove {name}")


def _fits(told: object, annotation: object) -> bool:
    try:
        msgspec.convert(told, annotation)
    except msgspec.ValidationError:
        return False
    return True
