"""Rewrites errors, which name tools and their arguments, for callers over HTTP.

A tool becomes its address: `list_agents` becomes `GET /v1/list_agents`. An argument becomes a field of the
body or a query parameter: `every` becomes `every_seconds` if the operation has only this field.
"""

import re
from typing import Any, Final

from starlette.requests import Request

from postroom.contracts.operations import Operation
from postroom.mail.operations import OPERATIONS

_TOOL: Final = re.compile(
    rf"`?(?<![\w'\"/@.-])({'|'.join(sorted(OPERATIONS, key=len, reverse=True))})(?![\w'\"/@-])`?"
)
_LIBRARY: Final = re.compile(r" or mailbox(?:\.\w+)+(?:\(\))?")
_NOUN: Final = re.compile(r"\b(the|two|plain) argument(s?)\b|\ban argument\b")
_NAME: Final = re.compile(r"`([a-z]\w*)`")
_OPERATION: Final = "postroom.operation"


def note_operation(request: Request, operation: Operation) -> None:
    """Store the operation of a request, so that error messages can name the operation's fields."""
    request.scope[_OPERATION] = operation


def find_operation(scope: Any) -> Operation | None:
    """Return the operation of a request, or None if the request has not reached an operation."""
    operation: Operation | None = scope.get(_OPERATION)
    return operation


def over_http(text: str, operation: Operation | None) -> str:
    """Rewrite an error message or a remedy for a caller of the HTTP interface."""
    noun = "parameter" if operation is not None and not operation.changes else "field"
    fields = () if operation is None else operation.command.__struct_fields__

    def field(met: re.Match[str]) -> str:
        in_seconds = f"{met[1]}_seconds"
        return f"`{in_seconds}`" if met[1] not in fields and in_seconds in fields else met[0]

    text = _TOOL.sub(
        lambda met: (
            met[0] if met[1] in fields else f"`{OPERATIONS[met[1]].method} {OPERATIONS[met[1]].path}`"
        ),
        text,
    )
    text = _NOUN.sub(lambda met: f"{met[1]} {noun}{met[2]}" if met[1] else f"a {noun}", text)
    return _NAME.sub(field, _LIBRARY.sub("", text))
