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
    """A parsed line from the client."""

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
    """The line is not a message. `answer` is the error to send to the client."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("the line is not a JSON-RPC message")
        self.answer = answer


def read_line(line: bytes) -> Message:
    """Return the message on a line.

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
    if isinstance(document, dict):
        method = document.get("method", "")
        named = _id(document.get("id"))
        is_answer = "result" in document or "error" in document
        if not isinstance(method, str) or not _PLAIN.fullmatch(method) or not (method or is_answer):
            raise UnreadableLine(
                failure(named, INVALID_REQUEST, "the method name of a request contains invalid characters")
            )
        parameters = document.get("params")
        given_fields = parameters if isinstance(parameters, dict) else {}
        version = _version(given_fields)
        return Message(
            body=body,
            awaits=(named,) if method and "id" in document else (),
            method=method,
            headers=_routing(method, given_fields, version) if version else {},
            version=version,
            client=_client(given_fields) if method == "initialize" else "",
            marks=_marks(given_fields) if method == "initialize" else (),
            cancels=_id(given_fields.get("requestId")) if method == "notifications/cancelled" else None,
            reads=method in _READING_METHODS
            or (method == "tools/call" and _is_reading(given_fields.get("name"))),
            has_key=method == "tools/call" and _has_key(given_fields.get("arguments")),
        )
    raise UnreadableLine(
        failure(None, INVALID_REQUEST, "a message must be an object, or an array of objects")
    )


def _is_reading(tool: object) -> bool:
    return isinstance(tool, str) and tool in READING_TOOLS


def _has_key(arguments: object) -> bool:
    return isinstance(arguments, dict) and bool(arguments.get("idempotency_key"))


def _client(parameters: dict[str, object]) -> str:
    about = parameters.get("clientInfo")
    name = about.get("name") if isinstance(about, dict) else None
    return name[:MAX_NAMES_SHOWN] if isinstance(name, str) and _PLAIN.fullmatch(name) else ""


def _marks(parameters: dict[str, object]) -> tuple[str, ...]:
    capabilities = parameters.get("capabilities")
    if not isinstance(capabilities, dict):
        return ()
    extensions = capabilities.get("extensions")
    shows = isinstance(extensions, dict) and "io.modelcontextprotocol/ui" in extensions
    return ("elicits",) * ("elicitation" in capabilities) + ("cards",) * shows


def _version(parameters: dict[str, object]) -> str:
    meta = parameters.get("_meta")
    version = meta.get(_VERSION_KEY) if isinstance(meta, dict) else None
    return version if isinstance(version, str) and _PLAIN.fullmatch(version) else ""


def _routing(method: str, parameters: dict[str, object], version: str) -> dict[str, str]:
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": method}
    name = parameters.get(_NAMED_BY.get(method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = header_value(name)
    return headers


def header_value(text: str) -> str:
    """Return a text in a form for a header: plain, or as base64 between the marks of the protocol."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _WRAPPED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='surrogatepass')).decode('ascii')}?="


def _id(value: object) -> RequestId:
    return value if isinstance(value, str | int | float) else None


def failure(named: RequestId, code: int, message: str, data: Mapping[str, object] | None = None) -> bytes:
    """Return a JSON-RPC error as one line, without a line end."""
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = dict(data)
    return compact({"jsonrpc": "2.0", "id": named, "error": error})


def failures(message: Message, code: int, text: str, data: Mapping[str, object] | None = None) -> bytes:
    """Return the same error for every request of a message, as a batch if the message is a batch."""
    each = [failure(named, code, text, data) for named in message.awaits]
    return b"[" + b",".join(each) + b"]" if message.batch else each[0]


def compact(document: object) -> bytes:
    """Return a document as JSON on one line."""
    return json.dumps(document, separators=(",", ":"), default=str).encode()


def answered(document: object) -> list[RequestId]:
    """Return the ids of the requests that a document from the server answers."""
    items = document if isinstance(document, list) else [document]
    return [
        _id(part.get("id"))
        for part in items
        if isinstance(part, dict) and "method" not in part and ("result" in part or "error" in part)
    ]


def build_id_key(named: RequestId) -> tuple[str, RequestId]:
    """Return an id in a form in which `1` and `"1"` are different."""
    return type(named).__name__, named
