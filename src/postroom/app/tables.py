"""Reads tables of TOML files into structs.

All tables have the same reader, which decides which values are invalid, and which error is raised.

A struct declares the names in its table with their types, limits and defaults, and the tables within it.
`postroom.toml_files` documents further options of a field.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from postroom.app import places
from postroom.app.gateway_secrets import secret_names, take_secret
from postroom.app.tokens import shown
from postroom.contracts.errors import ConfigError
from postroom.contracts.tables import Secret, Table
from postroom.toml_files import TableName, bare, check_names, extra_of, fields_of, place_of, words

T = TypeVar("T", bound=Table)
_FEW: Final = 4
"""The maximum number of names that a remedy lists."""
_NAMED: Final = re.compile(r"`(\w+)`")


def read_table(table: TableName, told: object, kind: type[T], environment: Mapping[str, str]) -> T:
    """Convert a table of a configuration file to a struct, and read the secrets of the table.

    Raises:
        ConfigError: The table is invalid. The error names the table, the name and the remedy.
    """
    return _convert(table, check_table(table, told, kind), kind, environment)


def check_table(table: TableName, told: object, kind: type[Table]) -> dict[str, Any]:
    """Check the names in a configuration table without converting the values.

    Raises:
        ConfigError: The table is invalid. The error names the table, the name and the remedy.
    """
    secrets = _secrets(kind)
    if not isinstance(told, dict):
        names = list(fields_of(kind))  # the fields to which the misplaced value may belong
        if secrets and len(names) == 1:
            names = [secret_names(secrets)[0]]
        elif len(fitting := [name for name in names if _fits({name: told}, kind)]) == 1:
            names = fitting
        ways = f" with {' or '.join(names)}" if len(names) <= _FEW else ""
        table.refuse("the value is not a table", value=table.name, remedy=f"write it as [{table.name}]{ways}")
    rest = dict(told)
    for name in secrets:
        take_secret(table, rest, name, {}, read=False)
    fields = fields_of(kind)
    check_names(table, rest, [*(fields.keys() - set(secrets)), *secret_names(secrets)])
    for name, value in rest.items():
        inner, is_many = _table_in(fields[name])
        if inner is None:
            continue
        within = table.within(name)
        if not is_many:
            check_table(within, value, inner)
        elif isinstance(value, dict):
            for key, item in value.items():
                check_table(within.within(key), item, inner)
        else:
            within.refuse("the value is not a table", value=name, remedy=f"write [{within.name}.<name>]")
    return told


def _table_in(kind: inspect.Type) -> tuple[type[Table] | None, bool]:
    value = bare(kind)
    is_many = isinstance(value, inspect.DictType)
    if isinstance(value, inspect.DictType):
        value = value.value_type
    is_table = isinstance(value, inspect.StructType) and issubclass(value.cls, Table)
    return (value.cls if is_table else None, is_many)  # type: ignore[attr-defined]  # checked


def _secrets(kind: type[Table]) -> list[str]:
    own = (name for name, item in fields_of(kind).items() if getattr(bare(item), "cls", None) is Secret)
    return [*own, *kind.ALSO]


def _convert(table: TableName, told: Mapping[str, Any], kind: type[T], environment: Mapping[str, str]) -> T:
    rest, fields = dict(told), fields_of(kind)
    for name in _secrets(kind):
        secret, target = take_secret(table, rest, name, environment), kind.ALSO.get(name, name)
        if secret is None:
            continue
        if target in rest:
            table.refuse(
                f"{name} and {target} mean the same setting in this table",
                value=name,
                remedy="set only one of them",
            )
        rest[target] = secret
    for name, value in rest.items():
        inner, is_many = _table_in(fields[name])
        within = table.within(name)
        if inner is None:
            read = extra_of(fields[name], "read")
            if extra_of(fields[name], "path") and isinstance(value, str) and value:
                rest[name] = str(places.absolute(value, environment, base=table.file.parent))
            elif read is not None:
                try:
                    rest[name] = read(value)
                except ValueError as error:
                    text = shown(value)
                    table.refuse(
                        f"{name} is {text!r}: {error}", value=text, remedy=f"correct or remove {name}"
                    )
        elif is_many:
            tables = {
                key: _convert(within.within(key), item, inner, environment) for key, item in value.items()
            }
            rest[name] = tables
        else:
            rest[name] = _convert(within, value, inner, environment)
    try:
        return msgspec.convert(rest, kind)
    except ConfigError as error:  # the struct has raised this error itself
        raise table.error(error.message, value=error.value, remedy=error.remedy) from error
    except msgspec.ValidationError as error:
        _refuse_invalid(table, told, rest, kind, str(error))
        raise


def _refuse_invalid(
    table: TableName, given: Mapping[str, Any], told: Mapping[str, Any], kind: type[Table], why: str
) -> None:
    """Raise an error about a value in the configuration file that msgspec has rejected.

    Raises:
        ConfigError: Always.
    """
    fields, name = fields_of(kind), place_of(why)
    if why.startswith("Object missing"):
        [name] = _NAMED.findall(why)
        table.refuse(f"{name} is missing", value=name, remedy=f"add {name}: {words(fields[name])}")
    if name is None:
        names = _NAMED.findall(why)
        remedy = f"correct {names[0]}" if names else "correct the table"
        table.refuse(why, value=names[0] if names else None, remedy=remedy)
    value, wanted = told[name], fields[name]
    many = bare(wanted)
    if isinstance(many, inspect.DictType) and isinstance(value, dict) and value:
        table = table.within(name)
        annotation = next(field.type for field in msgspec.structs.fields(kind) if field.encode_name == name)
        given = given[name]
        name = next(key for key, item in value.items() if not _fits({key: item}, annotation))
        if "at `key`" in why:
            accepted = words(many.key_type)
            table.refuse(
                f"{name!r} is not valid: write {accepted}", value=name, remedy=f"correct or remove {name}"
            )
        value, wanted = value[name], many.value_type
    item = bare(wanted)
    if isinstance(bare(item.item_type) if isinstance(item, inspect.VarTupleType) else item, inspect.StrType):
        text = f"{name} must be {words(wanted)}"  # do not show the value: it may be a misplaced secret
        table.refuse(text, value=name, remedy=f"correct or remove {name}")
    text = shown(given.get(name, value))
    table.refuse(f"{name} is {text!r}: write {words(wanted)}", value=text, remedy=f"correct or remove {name}")


def _fits(told: object, annotation: object) -> bool:
    try:
        msgspec.convert(told, annotation)
    except (ConfigError, msgspec.ValidationError):
        return False
    return True
