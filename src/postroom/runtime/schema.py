"""Checks a tool's arguments against the part of JSON schema that tools use; says what is wrong in words."""

from typing import Any

from postroom.contracts.messages import Json

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}


def problem_of(value: Json, schema: Json, *, where: str = "arguments") -> str | None:
    """Return what a value breaks of its schema, as a sentence for the model; None when it fits.

    Looked at are type, enum, const, anyOf, required, properties, additionalProperties and items. Other
    words of a schema are the tool's own to check.
    """
    if not isinstance(schema, dict):
        return None
    problem = _problem_of_kind(value, schema, where) or _problem_of_choice(value, schema, where)
    if problem is None and isinstance(value, dict):
        problem = _problem_of_object(value, schema, where)
    if problem is None and isinstance(value, list) and "items" in schema:
        found = (problem_of(one, schema["items"], where=f"{where}[{at}]") for at, one in enumerate(value))
        problem = next((one for one in found if one), None)
    return problem


def _problem_of_kind(value: Json, schema: dict[str, Any], where: str) -> str | None:
    said = schema.get("type")
    kinds = [said] if isinstance(said, str) else said
    if not isinstance(kinds, list) or any(_is(value, kind) for kind in kinds):
        return None
    return f"{where} must be of type {' or '.join(map(str, kinds))}"


def _is(value: Json, kind: str) -> bool:
    if kind in ("number", "integer") and isinstance(value, bool):
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _problem_of_choice(value: Json, schema: dict[str, Any], where: str) -> str | None:
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(allowed, list) and not any(_equal(value, one) for one in allowed):
        return f"{where} must be one of {allowed!r}"
    choices = schema.get("anyOf")
    if isinstance(choices, list) and all(problem_of(value, one, where=where) for one in choices):
        return f"{where} fits none of the forms that are allowed"
    return None


def _equal(value: Json, other: Json) -> bool:
    """Compare as JSON does, where true is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _problem_of_object(value: dict[str, Any], schema: dict[str, Any], where: str) -> str | None:
    properties = schema.get("properties") or {}
    missing = [name for name in schema.get("required") or () if name not in value]
    if missing:
        return f"{where} must have {', '.join(missing)}"
    others = schema.get("additionalProperties", True)
    for name, one in value.items():
        if name not in properties and others is False:
            return f"{where} must not have {name!r}; it may have: {', '.join(properties) or 'nothing'}"
        problem = problem_of(one, properties.get(name, others), where=f"{where}.{name}")
        if problem:
            return problem
    return None
