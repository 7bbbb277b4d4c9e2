"""Converts commands to small JSON schemas, without titles, nulls and references, to save tokens."""

import re
from functools import cache
from typing import Any

import msgspec

from postroom.contracts.operations import Operation
from postroom.mail.commands import Command

_NOISE = ("title", "default")
_CHECKED_ANYWAY = ("maximum", "minimum", "minLength", "maxLength", "pattern", "maxItems", "minItems")
"""Bounds that the schemas omit to save tokens.

The server checks them and reports a violation with a clear error.
"""
_WORDS = re.compile(r"[A-Za-z]{1,8}|\d{1,3}|[^\sA-Za-z\d]{1,3}")


@cache
def input_schema(command: type[Command]) -> dict[str, Any]:
    """Return the JSON schema of a command's arguments, which the caller must not change."""
    _, components = msgspec.json.schema_components([command])
    schema = _inline(components[command.__name__], components)
    properties = {name: _small(value) for name, value in schema["properties"].items()}
    return {
        "type": "object",
        "properties": properties,
        **({"required": schema["required"]} if schema.get("required") else {}),
        "additionalProperties": False,
    }


ERROR_SCHEMA = {
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "remedy": {"type": "string"},
                "retryable": {"type": "boolean"},
            },
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
"""The schema of the structured content of a failed call.

This schema is part of each output schema, because some clients validate errors against the tool's schema,
too.
"""


@cache
def output_schema(operation: Operation) -> dict[str, Any]:
    """Return the JSON schema of a tool's structured content, which the caller must not change."""
    (schema,), components = msgspec.json.schema_components([operation.answer])
    answer = _without_prose(_inline(schema, components))
    if answer.get("type") != "object":
        answer = {"properties": {"result": answer}, "required": ["result"]}
    return {"type": "object", "anyOf": [answer, ERROR_SCHEMA]}


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_prose(field) for name, field in value.items()}
        if key == "properties"
        else _without_prose(value)
        for key, value in schema.items()
        if key not in ("title", "description")
    }


def _inline(schema: Any, components: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if reference := schema.get("$ref"):
            return _inline(components[reference.rsplit("/", 1)[-1]], components)
        return {key: _inline(value, components) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_inline(value, components) for value in schema]
    return schema


def _small(schema: dict[str, Any]) -> dict[str, Any]:
    if choices := schema.get("anyOf"):
        alternatives = [choice for choice in choices if choice != {"type": "null"}]
        if len(alternatives) == 1:
            outer = {key: value for key, value in schema.items() if key not in ("anyOf", *_NOISE)}
            return _small({**alternatives[0], **outer})
    # Whether a default says more than that the argument may be omitted.
    small = {
        key: value
        for key, value in schema.items()
        if key not in _NOISE or (key == "default" and value not in (None, "", [], False, 0))
    }
    if small.get("type") == "array" and "items" in small:
        small["items"] = _small(small["items"])
    if "enum" in small:
        small = {"type": "string", **small}
    if "anyOf" in small:
        small["anyOf"] = [_small(choice) for choice in small["anyOf"]]
    if small.get("type") == "object" and "properties" in small:
        small.pop("description", None)
        small.pop("additionalProperties", None)
        small["properties"] = {name: _small(value) for name, value in small["properties"].items()}
    return {key: value for key, value in small.items() if key not in _CHECKED_ANYWAY and value != []}


def estimated_tokens(text: str) -> int:
    """Return an estimate of the number of tokens in a text.

    Compared to the tokenizer o200k, the estimate for tool definitions is at most a third too high.
    """
    return max(len(_WORDS.findall(text)), len(text) // 4)
