"""The schemas of the OpenAPI document: fields of commands with examples, responses, and errors."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Final, get_args

import msgspec
from starlette.responses import Response

from postroom.contracts import errors, work
from postroom.contracts.operations import Operation
from postroom.mail.operations import WHOLE_ATTACHMENT
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
    """A field in the query of a GET request."""

    name: str
    schema: dict[str, Any]
    required: bool


class Schemas:
    """The response schemas of operations, and in `parts` the schemas that they refer to."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        in_json = [row for row in operations if row.name != WHOLE_ATTACHMENT.name]
        changes = [row.command for row in operations if row.changes]
        kinds = list[Any]()
        for row in in_json:  # the type of a result, without `Response`, the result of a forwarded call
            choices = get_args(row.answer)
            is_passed_on = Response in choices
            kinds.append(
                next(kind for kind in choices if kind is not Response) if is_passed_on else row.answer
            )
        kinds += changes
        schemas, parts = msgspec.json.schema_components(kinds, ref_template=_AT)
        self._answers = dict(zip((row.name for row in in_json), schemas, strict=False))
        for record in vars(work).values():
            if is_dataclass(record) and (part := parts.get(getattr(record, "__name__", ""))):
                for name in part["properties"]:
                    if name.endswith(work.INSTANTS):
                        part["properties"][name] = _as_text(part["properties"][name])
        self.parts = {name: parts[name] for name in sorted(parts)}

    def answer(self, operation: Operation) -> dict[str, Any]:
        """Return the schema of an operation's response."""
        schema = dict(self._answers.get(operation.name, {"type": "string", "format": "binary"}))
        key = operation.answer_key
        return {"type": "object", "properties": {key: schema}, "required": [key]} if key else schema


def _as_text(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_as_text(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "integer":
        return {"type": "string", "format": "date-time"}
    return {name: _as_text(value) for name, value in schema.items()}


def reference(command: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a reference to the schema of a command."""
    return {"$ref": _AT.format(name=command.__name__)}


def query_fields(command: type[msgspec.Struct]) -> Iterator[QueryField]:
    """Yield the query fields of an operation; no field may be null."""
    _, parts = msgspec.json.schema_components([command])
    schema = parts[command.__name__]
    for name, field in schema["properties"].items():
        choices = [choice for choice in field.get("anyOf", ()) if choice != {"type": "null"}]
        if len(choices) != 1:
            without_null = field
        else:
            rest = {name: value for name, value in field.items() if name not in ("anyOf", "default")}
            without_null = {**choices[0], **rest}
        yield QueryField(name=name, schema=without_null, required=name in schema["required"])


VALUES: Final[Mapping[str, Any]] = {
    "accept": True,
    "agent": "BlueLake",
    "agent_name": "BlueLake",
    "answer": "yes",
    "body": "What is planned this week?",
    "body_md": "Please look at the lock of `src/harbour.py`.",
    "code": "K7PQ2M",
    "epoch": 1,
    "folder": "/home/me/port",
    "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "human_key": "/home/me/harbour",
    "id": "k3v9x2m7q1pz",
    "message_id": 1,
    "model": "opus",
    "name": "standup",
    "number": "3fa9c1",
    "outbox_id": "7d1f2c",
    "kind": "task_ready",
    "note_id": 1,
    "overlap_seconds": 3600,
    "paths": ["src/**"],
    "person": "kim",
    "platform": "telegram",
    "policy": "open",
    "program": "claude-code",
    "project": "harbour",
    "project_key": "/home/me/harbour",
    "query": "harbour",
    "question": "May I push?",
    "reason": "its holder has stopped working",
    "requester": "GreenHill",
    "seconds": 3600,
    "reservation_id": 1,
    "run": "4be1",
    "runner": {"recipe": "claude"},
    "scopes": ["mail:read"],
    "sender": "Ana",
    "sender_name": "BlueLake",
    "source": "harbour-2",
    "subject": "Review",
    "subscription_id": 1,
    "target": "harbour",
    "task": 12,
    "task_id": 1,
    "text": "The build is done.",
    "thread_id": "1",
    "title": "Light the north pier",
    "to": "GreenHill",
    "user_id": "123456",
}
_OF_ONE_COMMAND: Final[Mapping[str, Mapping[str, Any]]] = {
    "SendMessage": {"to": ["GreenHill"]},
    "AddSchedule": {"to": ["GreenHill"], "cron": "0 9 * * MON"},
}
"""The examples for optional fields, and for fields whose default example would be wrong."""


def build_example(command: type[msgspec.Struct]) -> dict[str, Any]:
    """Return example arguments for a command."""
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
    errors.UnknownNote,
    errors.UnknownSubscription,
    errors.EventNotReported,
    errors.NameTaken,
    errors.StateError,
    errors.IllegalTransition,
    errors.IdempotencyConflict,
    errors.AgentRetired,
    errors.AlreadyRead,
    errors.NotHolder,
    errors.TaskNotHeld,
    errors.TaskNotReady,
    errors.NoteContradicts,
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
"""The error codes that do not come from operations, without those about tokens and sizes."""
ONLY_OF_CHANGES: Final = frozenset({415, 507})
ALWAYS: Final = frozenset({400, 401, 403, 413, 421, 500})
"""The statuses that a call which does not use mail can have."""


ADMINISTRATIVE: Final[tuple[type[errors.PostroomError], ...]] = (
    errors.UnknownToken,
    errors.UnknownRun,
    errors.UnknownSchedule,
    errors.InvalidRunner,
    errors.InvalidSchedule,
    errors.DuplicateRecord,
    errors.StaleDecision,
    errors.QueueFull,
    errors.ArchiveUnavailable,
    errors.ServerUnavailable,
    errors.ConfigError,
)
"""The errors that only administration can raise."""


def codes_by_status(kinds: Sequence[type[errors.PostroomError]] = MAIL) -> dict[int, tuple[str, ...]]:
    """Return the possible error codes for each HTTP status, in ascending order."""
    by_status: defaultdict[int, set[str]] = defaultdict(set)
    for kind in kinds:
        by_status[STATUSES[kind]].add(kind.code)
    for status, codes in DOOR.items():
        by_status[status].update(codes)
    return {status: tuple(sorted(by_status[status])) for status in sorted(by_status)}
