"""Describes values of a wrong type for error messages: "`to[2]` must be text, not a whole number"."""

import re
from typing import Final

_TYPES: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "text",
}
_AT: Final = re.compile(r" - at `(?:(?:key|keys) in )?\$\.?(.*)`\Z", re.DOTALL)
_TYPE: Final = re.compile(
    r"Expected `([^`]+)`(?: of length)?(?: (<=|>=|<|>|==) (-?[\d.]+))?(?:, got `([^`]+)`)?\Z"
)
_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`\Z", re.DOTALL)
_CHOICE: Final = re.compile(r"Invalid enum value (.*)\Z", re.DOTALL)
_BOUNDS: Final = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than", "==": "exactly"}


def place_of(said: str) -> str:
    """Return the position of an invalid value, such as `attachments[0].name`, or ""."""
    match = _AT.search(said)
    return "" if match is None else match[1]


def misfit(said: str) -> str:
    """Return a description of an invalid value, which begins with the position of the value."""
    place, reason = place_of(said), _AT.sub("", said)
    if match := _FIELD.match(reason):
        where = f" in `{place}`" if place else ""
        return f"`{match[2]}`{where} is {'missing' if match[1].startswith('missing') else 'unknown'}"
    subject = f"`{place}`" if place else "the value"
    if match := _CHOICE.match(reason):
        return f"{subject} cannot be {match[1]}"
    if (match := _TYPE.match(reason)) is None:
        return f"{subject}: {reason[:1].lower()}{reason[1:]}"
    kinds, bound, number, got = match.groups()
    names = [_TYPES.get(kind, kind) for kind in kinds.split(" | ") if kind != "null" or kinds == "null"]
    wanted = " or ".join(names)
    if bound == ">=" and number == "1" and "of length" in reason:
        return f"{subject} must not be empty"
    if bound:
        unit = {"a list": " items", "text": " characters"}.get(wanted, "") if "of length" in reason else ""
        wanted = f"{wanted} of {_BOUNDS[bound]} {number.removesuffix('.0')}{unit}"
    return f"{subject} must be {wanted}" + (f", not {_TYPES.get(got, got)}" if got else "")
