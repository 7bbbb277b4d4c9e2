"""Makes `src/postroom/cli/operations.json`: the table of operations, as commands read it.

Commands must start fast, so they load neither the functions of the table nor the library of its structs.
"""

import json
import typing
from pathlib import Path
from typing import Any, Final

import msgspec

from postroom.app.operations import ALL_OPERATIONS
from postroom.contracts.operations import Operation, Option

FILE: Final = Path(__file__).resolve().parents[2] / "src" / "postroom" / "cli" / "operations.json"
_LAST: Final = ("project", "key")
"""Kinds of options that a help lists last."""


def text() -> str:
    """Return the content of the file, a line for each operation."""
    rows = [one for one in ALL_OPERATIONS if one.line or one.service is not None]
    lines = [f"{json.dumps(one.name)}: {json.dumps(_row(one), ensure_ascii=False)}" for one in rows]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _row(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if operation.service is not None:
        told = {"method": operation.method, "path": operation.path}
    if operation.doing:
        told["doing"] = operation.doing
    if operation.line:
        told |= {"words": operation.words, "help": operation.help, "fields": _fields(operation)}
    return told


def _fields(operation: Operation) -> list[dict[str, Any]]:
    command, places = operation.command, operation.places
    _, parts = msgspec.json.schema_components([command])
    schema, hints = parts[command.__name__], typing.get_type_hints(command, include_extras=True)
    if unknown := {*places, *operation.options} - hints.keys():
        raise LookupError(f"{operation.line} names fields that {command.__name__} lacks: {unknown}")
    required = schema.get("required", [])
    fields = {}
    for name, given in schema["properties"].items():
        option = operation.options.get(name) or _option_of(name, hints[name])
        fields[name] = _field(name, given, option, is_required=name in required)
        if choices := _choices_of(hints[name]):
            fields[name]["choices"] = choices
    options = [one for name, one in fields.items() if name not in places]
    options.sort(key=lambda one: _LAST.index(one["kind"]) if one.get("kind") in _LAST else -1)
    return [*({**fields[name], "place": True} for name in places), *options]


def _option_of(name: str, hint: Any) -> Option:
    """Return how the type of a field says that commands take it."""
    for one in (hint, *typing.get_args(hint)):
        for meta in getattr(one, "__metadata__", ()):
            if meta.extra and "option" in meta.extra:
                return typing.cast("Option", meta.extra["option"])
    return Option(kind="key" if name == "idempotency_key" else "")


def _choices_of(hint: Any) -> list[Any]:
    """Return the values of a field that has some, in the order of its type."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return next((found for one in typing.get_args(hint) if (found := _choices_of(one))), [])


def _field(name: str, given: dict[str, Any], option: Option, *, is_required: bool) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for one in (given, *given.get("anyOf", ())):
        if one.get("type") != "null":
            whole = {**one, **whole}
    told = {
        "name": name,
        "type": whole.get("type", "string"),
        "default": None if is_required else whole.get("default"),
        "required": is_required,
        "option": option.name,
        "help": option.help or whole.get("description", ""),
        "metavar": option.metavar,
        "complete": option.complete,
        "kind": option.kind,
        "least": whole.get("minimum"),
        "most": whole.get("maximum"),
    }
    return {
        key: value for key, value in told.items() if value is not None and value is not False and value != ""
    }
