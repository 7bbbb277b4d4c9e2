"""The schemas of the document: what commands take and what operations answer, by reference."""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from postroom.mail.commands import Command
from postroom.mail.operations import ALL_OPERATIONS, Operation

_AT: Final = "#/components/schemas/{name}"

PROBLEM: Final[dict[str, Any]] = {
    "title": "Problem",
    "description": "A refusal (RFC 9457). Nothing was changed, unless the code is commit_unknown.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "pattern": "^urn:postroom:problem:"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "what is wrong"},
        "code": {"type": "string", "description": "stable, never reused"},
        "value": {"description": "what was wrong in the call, if one thing was"},
        "remedy": {"type": "string", "description": "what to do"},
        "retryable": {"type": "boolean", "description": "whether the same call may work later"},
        "details": {"type": "object"},
        "request_id": {"type": "string"},
    },
    "required": [
        "type",
        "title",
        "status",
        "detail",
        "code",
        "value",
        "remedy",
        "retryable",
        "details",
        "request_id",
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryField:
    """A field of a look, as it stands in a query."""

    name: str
    schema: dict[str, Any]
    required: bool


@cache
def _made() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the schema of each operation's answer, and what all of them and the commands refer to."""
    answers = [typing.get_type_hints(one.run)["return"] for one in ALL_OPERATIONS]
    changes = [one.command for one in ALL_OPERATIONS if one.changes]
    found, parts = msgspec.json.schema_components([*answers, *changes], ref_template=_AT)
    by_name = {one.name: schema for one, schema in zip(ALL_OPERATIONS, found, strict=False)}
    return by_name, {name: parts[name] for name in sorted(parts)}


def components() -> dict[str, Any]:
    """Return every schema that is referred to, by name."""
    return dict(_made()[1])


def answer_schema(operation: Operation) -> dict[str, Any]:
    """Return the schema of what an operation answers."""
    return dict(_made()[0][operation.name])


def reference(command: type[Command]) -> dict[str, Any]:
    """Return a reference to the schema of a command."""
    return {"$ref": _AT.format(name=command.__name__)}


def query_fields(command: type[Command]) -> Iterator[QueryField]:
    """Yield the fields of a look; one that is not needed is left away there, for a query knows no null."""
    _, parts = msgspec.json.schema_components([command])
    schema = parts[command.__name__]
    for name, given in schema["properties"].items():
        yield QueryField(name=name, schema=_without_null(given), required=name in schema["required"])


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kept = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(kept) != 1:
        return schema
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**kept[0], **rest}
