"""Answers plain `tools/call` requests without the transport of the MCP SDK, which is faster.

The answers are the same.

This module accepts only the forms of headers and messages that clients are known to send. The SDK handles all
other requests. The SDK also rejects the invalid ones, so no error is implemented twice. A test compares the
answers of both implementations (ADR 30).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from postroom.mcp_server.answers import Untold, answer_call
from postroom.mcp_server.callers import read_caller, read_client_name
from postroom.mcp_server.cards import CARD_TOOLS
from postroom.mcp_server.windows import ASK
from postroom.services.calls import Calls

_CALL: Final = "tools/call"
_UNNAMED_REVISION: Final = "2025-03-26"
"""The protocol revision of a client that names none. The SDK assumes the same."""
_MARK: Final = "io.modelcontextprotocol/"
_REVISION_KEY: Final = f"{_MARK}protocolVersion"
_ENVELOPE: Final = {_REVISION_KEY, f"{_MARK}clientCapabilities"}
_TRACES: Final = {"traceparent", "tracestate", "baggage"}
_READ: Final = frozenset(
    {b"accept", b"content-type", b"mcp-method", b"mcp-name", b"mcp-protocol-version", b"traceparent"}
)
_MESSAGE: Final = {"jsonrpc", "id", "method", "params"}
_PARAMS: Final = {"name", "arguments", "_meta"}
_JSON_TYPES: Final = {"application/json", "application/*", "*/*"}


class ShortWay:
    """Executes plain tool calls without the MCP SDK."""

    def __init__(
        self,
        calls_for: Callable[[Request], Calls],
        *,
        server_info: Mapping[str, Any],
        untold: Untold | None = None,
        is_traced: bool = False,
    ) -> None:
        """`calls_for` returns the calls for the profile of a request.

        `server_info` describes this server. `untold` returns new messages for a run. If `is_traced` is True,
        the SDK handles every call.
        """
        self._calls_for = calls_for
        self._untold = untold
        self._is_traced = is_traced
        self._envelope = {"resultType": "complete", "_meta": {f"{_MARK}serverInfo": dict(server_info)}}

    async def answer(self, scope: Scope, message: Mapping[str, Any]) -> Response | None:
        """Execute a tool call, and return the response, or None if the SDK must handle the message."""
        params = message.get("params")
        if message.get("method") != _CALL or not isinstance(params, dict) or message.keys() != _MESSAGE:
            return None
        if self._is_traced:
            return None
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in _READ:
                if name in headers:
                    return None
                headers[name] = value
        accepted = headers.get(b"accept", b"*/*").decode("latin-1").lower().split(",")
        if not any(media_type.partition(";")[0].strip() in _JSON_TYPES for media_type in accepted):
            return None
        if headers.get(b"content-type", b"").partition(b";")[0] != b"application/json":
            return None
        revision, meta = _revision(headers, params), params.get("_meta")
        if revision is None or not params.keys() <= _PARAMS:
            return None
        if isinstance(meta, dict) and meta.keys() & _TRACES:
            return None
        try:
            validate_client_request(_CALL, revision, params)
        except (ValueError, KeyError):  # what the models of the SDK raise is a ValueError
            return None
        arguments = params.get("arguments") or {}
        request = Request(scope)
        calls, caller = self._calls_for(request), read_caller(request)
        declared = (params.get("_meta") or {}).get(f"{_MARK}clientCapabilities")
        if params["name"] in CARD_TOOLS:
            return None
        if params["name"] == ASK and isinstance(declared, dict) and "elicitation" in declared:
            return None  # the SDK asks the person at the client
        outcome = await answer_call(calls, params["name"], arguments, caller=caller, untold=self._untold)
        texts, structured = outcome.told_to(read_client_name(request, params.get("_meta")))
        content = [{"type": "text", "text": text} for text in texts]
        fields = {} if structured is None else {"structuredContent": structured}
        result = {"content": content, **fields, "isError": outcome.is_error}
        if revision == LATEST_MODERN_VERSION:
            result |= self._envelope
        document = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return Response(msgspec.json.encode(document, enc_hook=str), media_type="application/json")


def _revision(headers: Mapping[bytes, bytes], params: Mapping[str, Any]) -> str | None:
    named = headers.get(b"mcp-protocol-version")
    if named is None:
        return _UNNAMED_REVISION
    revision = named.decode("latin-1")
    if revision in HANDSHAKE_PROTOCOL_VERSIONS:
        return revision
    meta = params.get("_meta")
    if revision != LATEST_MODERN_VERSION or not isinstance(meta, dict) or not meta.keys() >= _ENVELOPE:
        return None
    tool = headers.get(b"mcp-name", b"")
    agree = (
        meta[_REVISION_KEY] == revision
        and headers.get(b"mcp-method") == _CALL.encode()
        and tool.isascii()
        and tool.decode("latin-1") == params.get("name")
        and not tool.startswith(b"=?")
    )
    return revision if agree else None
