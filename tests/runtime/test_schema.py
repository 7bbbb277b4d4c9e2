"""The check of a tool's arguments."""

from typing import Any

from postroom.runtime.tools import find_violation
from table_rows import each_row

POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer"},
        "y": {"type": ["number", "null"]},
        "kind": {"enum": ["a", 1]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "in": {
            "type": "object",
            "properties": {"z": {"const": True}},
            "additionalProperties": {"type": "string"},
        },
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "odd": {"type": "unheard-of"},
    },
    "required": ["x"],
    "additionalProperties": False,
}


@each_row(
    "value",
    [
        {"x": 1},
        {"x": 1.0, "y": None, "kind": "a", "tags": [], "in": {}, "either": "s", "odd": 4},
        {"x": 1, "y": 2.5, "kind": 1, "tags": ["t"], "in": {"z": True, "more": "s"}, "either": 3},
    ],
)
def test_what_fits(value: Any) -> None:
    assert find_violation(value, POINT) is None


@each_row(
    "value, problem",
    [
        ([], "arguments must be of type object"),
        (None, "arguments must be of type object"),
        ({}, "arguments must have x"),
        ({"x": True}, "arguments.x must be of type integer"),
        ({"x": 1.5}, "arguments.x must be of type integer"),
        ({"x": "1"}, "arguments.x must be of type integer"),
        ({"x": 1, "y": "2"}, "arguments.y must be of type number or null"),
        ({"x": 1, "kind": True}, "arguments.kind must be one of ['a', 1]"),
        ({"x": 1, "tags": ["a", 2]}, "arguments.tags[1] must be of type string"),
        ({"x": 1, "in": {"z": 1}}, "arguments.in.z must be one of [True]"),
        ({"x": 1, "in": {"more": 1}}, "arguments.in.more must be of type string"),
        ({"x": 1, "either": None}, "arguments.either matches none of the allowed forms"),
        ({"x": 1, "q": 1}, "arguments must not have 'q'; it may have: x, y, kind, tags, in, either, odd"),
    ],
)
def test_what_does_not(value: Any, problem: str) -> None:
    assert find_violation(value, POINT) == problem


@each_row("schema", [{}, None, True, {"type": None}, {"properties": None, "required": None}])
def test_a_schema_that_says_nothing_lets_everything_through(schema: Any) -> None:
    assert find_violation({"x": 1}, schema) is None
