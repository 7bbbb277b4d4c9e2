"""Errors in the words of HTTP: the server writes each error once, in the words of its tools.

A tool becomes its address: `list_agents` is `GET /v1/list_agents`. An argument becomes the field of the body,
or the parameter of the address: `every` is `every_seconds` if the operation has only that.
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
    """Keep the operation of a request, so that its errors name the operation's fields."""
    request.scope[_OPERATION] = operation


def operation_of(scope: Any) -> Operation | None:
    """Return the operation of a request; None if the request has reached no operation."""
    found: Operation | None = scope.get(_OPERATION)
    return found


def over_http(text: str, operation: Operation | None) -> str:
    """Return a message or a remedy in the words of a caller over HTTP."""
    noun = "parameter" if operation is not None and not operation.changes else "field"
    fields = () if operation is None else operation.command.__struct_fields__

    def field(met: re.Match[str]) -> str:
        in_seconds = f"{met[1]}_seconds"
        return f"`{in_seconds}`" if met[1] not in fields and in_seconds in fields else met[0]

    text = _TOOL.sub(lambda met: f"`{OPERATIONS[met[1]].method} {OPERATIONS[met[1]].path}`", text)
    text = _NOUN.sub(lambda met: f"{met[1]} {noun}{met[2]}" if met[1] else f"a {noun}", text)
    return _NAME.sub(field, _LIBRARY.sub("", text))
