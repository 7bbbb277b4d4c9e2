"""The schemas of the document, by reference: what commands take, examples of them, answers and refusals."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from postroom.contracts import errors
from postroom.contracts.operations import Operation
from postroom.mail.commands import Command
from postroom.mail.operations import ALL_OPERATIONS, WHOLE_ATTACHMENT
from postroom.services.statuses import STATUSES

_AT: Final = "#/components/schemas/{name}"

PROBLEM: Final[dict[str, Any]] = {
    "title": "Problem",
    "description": "An error (RFC 9457). Nothing was changed, unless the code is commit_unknown.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "pattern": "^urn:postroom:problem:"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "what is wrong"},
        "code": {"type": "string", "description": "stable, never reused"},
        "value": {"description": "the invalid value of the call, if there is one"},
        "remedy": {"type": "string", "description": "what to do"},
        "retryable": {"type": "boolean", "description": "whether the same call may succeed later"},
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
    """A field of a reading operation in a query."""

    name: str
    schema: dict[str, Any]
    required: bool


@cache
def _made() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the schema of each operation's answer, and what all of them and the commands refer to."""
    in_json = [one for one in ALL_OPERATIONS if one.name != WHOLE_ATTACHMENT.name]
    answers = [one.answer for one in in_json]
    changes = [one.command for one in ALL_OPERATIONS if one.changes]
    found, parts = msgspec.json.schema_components([*answers, *changes], ref_template=_AT)
    by_name = {one.name: schema for one, schema in zip(in_json, found, strict=False)}
    return by_name, {name: parts[name] for name in sorted(parts)}


def components() -> dict[str, Any]:
    """Return every schema that is referred to, by name."""
    return dict(_made()[1])


def answer_schema(operation: Operation) -> dict[str, Any]:
    """Return the schema of an operation's answer; get_attachment answers the bytes of a file."""
    return dict(_made()[0].get(operation.name, {"type": "string", "format": "binary"}))


def reference(command: type[Command]) -> dict[str, Any]:
    """Return a reference to the schema of a command."""
    return {"$ref": _AT.format(name=command.__name__)}


def query_fields(command: type[Command]) -> Iterator[QueryField]:
    """Yield the fields of a reading operation; unneeded fields are omitted, because a query has no null."""
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


VALUES: Final[Mapping[str, Any]] = {
    "accept": True,
    "agent_name": "BlueLake",
    "body_md": "Please look at the lock of `src/harbour.py`.",
    "epoch": 1,
    "human_key": "/home/me/harbour",
    "message_id": 1,
    "model": "opus",
    "paths": ["src/**"],
    "policy": "open",
    "program": "claude-code",
    "project_key": "/home/me/harbour",
    "query": "harbour",
    "question": "May I push?",
    "reason": "its holder has stopped working",
    "requester": "GreenHill",
    "reservation_id": 1,
    "sender_name": "BlueLake",
    "subject": "Review",
    "task_id": 1,
    "thread_id": "1",
    "title": "Light the north pier",
    "to": "GreenHill",
}
_OF_ONE_COMMAND: Final[Mapping[str, Mapping[str, Any]]] = {"SendMessage": {"to": ["GreenHill"]}}
"""Useful examples in addition to the required fields, or with another form."""


def example_of(command: type[Command]) -> dict[str, Any]:
    """Return the arguments of a call that can be read."""
    needed = [field.name for field in msgspec.structs.fields(command) if field.required]
    return {**{name: VALUES[name] for name in needed}, **_OF_ONE_COMMAND.get(command.__name__, {})}


MAIL: Final[tuple[type[errors.PostroomError], ...]] = (
    errors.InvalidArgument,
    errors.InvalidName,
    errors.InvalidPath,
    errors.InvalidPattern,
    errors.InvalidRecipients,
    errors.TooLarge,
    errors.UnknownProject,
    errors.UnknownAgent,
    errors.UnknownMessage,
    errors.UnknownThread,
    errors.UnknownReservation,
    errors.UnknownTask,
    errors.TaskCircle,
    errors.NameTaken,
    errors.StateError,
    errors.IllegalTransition,
    errors.IdempotencyConflict,
    errors.AgentRetired,
    errors.AlreadyRead,
    errors.NotHolder,
    errors.TaskNotHeld,
    errors.TaskNotReady,
    errors.CursorAhead,
    errors.CursorExpired,
    errors.ContactRequired,
    errors.ContactBlocked,
    errors.TokenRequired,
    errors.WrongToken,
    errors.IdentityMismatch,
    errors.NotPermitted,
    errors.InsufficientScope,
    errors.InternalError,
    errors.StoreError,
    errors.StoreUnavailable,
    errors.StoreReadOnly,
    errors.StoreCorrupt,
    errors.StoreFull,
    errors.CommitUnknown,
)
"""The errors of the mail room and its store."""
DOOR: Final[Mapping[int, tuple[str, ...]]] = {
    400: ("malformed_request",),
    403: ("foreign_origin",),
    415: ("unsupported_media_type",),
    421: ("unknown_host",),
    500: ("internal_error",),
    503: ("server_unavailable",),
}
"""The error codes outside operations, apart from those about tokens and sizes."""
ONLY_OF_CHANGES: Final = frozenset({415, 507})
ALWAYS: Final = frozenset({400, 401, 403, 413, 421, 500})
"""The statuses possible for a call that needs no mail."""


def codes_by_status() -> dict[int, tuple[str, ...]]:
    """Return the possible codes of a refusal with each status, in order."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for kind in MAIL:
        found[STATUSES[kind]].add(kind.code)
    for status, codes in DOOR.items():
        found[status].update(codes)
    return {status: tuple(sorted(found[status])) for status in sorted(found)}
