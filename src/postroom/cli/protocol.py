"""Parses lines that a client writes on stdio, and converts them for HTTP, without I/O.

Two generations of the protocol are supported. Up to 2025-11-25, a client begins with `initialize`, and a
header of every later request contains the negotiated revision. From 2026-07-28 on, each request names its
revision in `_meta`. The headers repeat the revision, the method and the called name, and the server compares
both.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

RequestId = str | int | float | None

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
SERVER_FAILURE: Final = -32000
MAX_NAMES_SHOWN: Final = 100
"""The maximum number of characters of a client's name that are forwarded."""

READING_TOOLS: Final = frozenset(
    {
        "catch_up",
        "check_file_reservations",
        "delivery_status",
        "fetch_events",
        "fetch_inbox",
        "fetch_inbox_events",
        "fetch_thread",
        "find_notes",
        "get_attachment",
        "get_message",
        "health_check",
        "list_agents",
        "list_contacts",
        "list_file_reservations",
        "list_subscriptions",
        "list_tasks",
        "search_messages",
        "show_project",
        "summarize_thread",
        "whois",
    }
)
"""The tools that only read.

This list exists because the table of operations is too large for `postroom mcp`.
"""
_READING_METHODS: Final = frozenset(
    {
        "completion/complete",
        "initialize",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "server/discover",
        "tools/list",
    }
)

_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN: Final = re.compile(r"[\x20-\x7e]*")
_WRAPPED: Final = re.compile(r"=\?base64\?.*\?=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message from the client, parsed from one line."""

    body: bytes
    awaits: tuple[RequestId, ...] = ()
    """The ids of the requests that expect a response. A notification has no ids."""
    method: str = ""
    batch: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    """The protocol revision that the line names, or "" if it names none."""
    client: str = ""
    """The name of the client program, which only an `initialize` line contains."""
    marks: tuple[str, ...] = ()
    """The capabilities in an `initialize` line that the server needs later: `elicits`, `cards`."""
    cancels: RequestId = None
    """The id of the request that the client cancels, or None if the line cancels nothing."""
    reads: bool = False
    """Whether the request only reads."""
    has_key: bool = False
    """Whether the line calls a tool with an idempotency key, so that it is safe to repeat the call."""


class UnreadableLine(Exception):
    """Raised for a line that is not a message; `answer` is the error response to the client."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("the line is not a JSON-RPC message")
        self.answer = answer


def read_line(line: bytes) -> Message:
    """Parse a line of the client as a JSON-RPC message.

    Raises:
        UnreadableLine: The line is not JSON, or is not JSON-RPC.
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableLine(failure(None, PARSE_ERROR, f"not JSON: {error}")) from error
    body = line.strip()
    if isinstance(document, list) and document:
        awaited = tuple(
            _id(part["id"])
            for part in document
            if isinstance(part, dict) and "id" in part and "method" in part
        )
        return Message(body=body, awaits=awaited, batch=True)
    if not isinstance(document, dict):
        raise UnreadableLine(
            failure(None, INVALID_REQUEST, "a message must be an object, or an array of objects")
        )
    method, named = document.get("method", ""), _id(document.get("id"))
    is_answer = "result" in document or "error" in document
    if not isinstance(method, str) or not _PLAIN.fullmatch(method) or not (method or is_answer):
        raise UnreadableLine(
            failure(named, INVALID_REQUEST, "the method name of a request contains invalid characters")
        )
    given_fields = _object(document.get("params"))
    headers, version = dict[str, str](), _plain_text(_object(given_fields.get("_meta")).get(_VERSION_KEY))
    if version:
        headers = {"MCP-Protocol-Version": version, "Mcp-Method": method}
        name = given_fields.get(_NAMED_BY.get(method, ""))
        if isinstance(name, str):
            headers["Mcp-Name"] = header_value(name)
    client, marks = "", tuple[str, ...]()
    if method == "initialize":
        client = _plain_text(_object(given_fields.get("clientInfo")).get("name"))[:MAX_NAMES_SHOWN]
        capabilities = _object(given_fields.get("capabilities"))
        shows = "io.modelcontextprotocol/ui" in _object(capabilities.get("extensions"))
        marks = ("elicits",) * ("elicitation" in capabilities) + ("cards",) * shows
    tool = given_fields.get("name") if method == "tools/call" else None
    return Message(
        body=body,
        awaits=(named,) if method and "id" in document else (),
        method=method,
        headers=headers,
        version=version,
        client=client,
        marks=marks,
        cancels=_id(given_fields.get("requestId")) if method == "notifications/cancelled" else None,
        reads=method in _READING_METHODS or (isinstance(tool, str) and tool in READING_TOOLS),
        has_key=method == "tools/call"
        and bool(_object(given_fields.get("arguments")).get("idempotency_key")),
    )


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _plain_text(value: object) -> str:
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else ""


def header_value(text: str) -> str:
    """Return a text in the form of a header value, encoded as base64 if necessary."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _WRAPPED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='surrogatepass')).decode('ascii')}?="


def _id(value: object) -> RequestId:
    return value if isinstance(value, str | int | float) else None


def failure(named: RequestId, code: int, message: str, data: Mapping[str, object] | None = None) -> bytes:
    """Return a JSON-RPC error response as one line without a line end."""
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = dict(data)
    return compact({"jsonrpc": "2.0", "id": named, "error": error})


def failures(message: Message, code: int, text: str, data: Mapping[str, object] | None = None) -> bytes:
    """Return the same JSON-RPC error response for every request in a message."""
    each = [failure(named, code, text, data) for named in message.awaits]
    return b"[" + b",".join(each) + b"]" if message.batch else each[0]


def compact(document: object) -> bytes:
    """Return a value as JSON on one line."""
    return json.dumps(document, separators=(",", ":"), default=str).encode()


def answered(document: object) -> list[RequestId]:
    """Return the ids of the requests that a server's response answers."""
    items = document if isinstance(document, list) else [document]
    return [
        _id(part.get("id"))
        for part in items
        if isinstance(part, dict) and "method" not in part and ("result" in part or "error" in part)
    ]


def build_id_key(named: RequestId) -> tuple[str, RequestId]:
    """Return a request id as a dictionary key; the ids `1` and `"1"` have different keys."""
    return type(named).__name__, named
