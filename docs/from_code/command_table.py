"""Makes `src/postroom/cli/operations.json`: the table of operations, as commands read it.

Commands must start fast, so they load neither the functions of the table nor the library of its structs.
"""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from postroom.app.operations import TABLE
from postroom.contracts.operations import CommandLine, Operation, Option

FILE: Final = Path(__file__).resolve().parents[2] / "src" / "postroom" / "cli" / "operations.json"
_LAST: Final = ("project", "key")
"""Kinds of options that a help lists last."""


def text() -> str:
    """Return the content of the file."""
    found = {one.name: _row(one) for one in TABLE if one.line is not None or one.service is not None}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _row(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if operation.service is not None:
        told = {"method": operation.method, "path": operation.path}
    if operation.doing:
        told["doing"] = operation.doing
    if operation.line is not None:
        told |= {
            "words": operation.line.words,
            "help": operation.help,
            "fields": _fields(operation.command, operation.line),
        }
    return told


def _fields(command: type[Any], line: CommandLine) -> list[dict[str, Any]]:
    _, parts = msgspec.json.schema_components([command])
    schema = parts[command.__name__]
    required = schema.get("required", [])
    fields = {
        name: _field(name, given, line, is_required=name in required)
        for name, given in schema["properties"].items()
    }
    if unknown := [one for one in (*line.places, *line.options) if one not in fields]:
        raise LookupError(f"{line.words} names fields that {command.__name__} lacks: {unknown}")
    options = [one for name, one in fields.items() if name not in line.places]
    options.sort(key=lambda one: _LAST.index(one["kind"]) if one.get("kind") in _LAST else -1)
    return [*({**fields[name], "place": True} for name in line.places), *options]


def _field(name: str, given: dict[str, Any], line: CommandLine, *, is_required: bool) -> dict[str, Any]:
    option = line.options.get(name, Option(kind="key" if name == "idempotency_key" else ""))
    kinds = [one for one in (given, *given.get("anyOf", ())) if one.get("type") != "null"]
    whole: dict[str, Any] = {}
    for one in kinds:
        whole = {**one, **whole}
    told = {
        "name": name,
        "type": whole.get("type", "string"),
        "choices": whole.get("enum"),
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
