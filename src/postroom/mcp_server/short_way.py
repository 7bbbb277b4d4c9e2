"""The short way of `tools/call`: a plain call is answered without the SDK's transport, in the same words.

It takes only what it knows to be right: the headers and the message of a call in a form that clients send.
Whatever is missing, unusual or wrong goes to the SDK, which refuses it in its own words, so that no refusal
is written twice. A test compares the answers of both ways (ADR 30).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from postroom.mcp_server.answers import ToolAnswer, Untold, answer_call
from postroom.mcp_server.callers import caller_of, client_of
from postroom.services.calls import Calls

_CALL: Final = "tools/call"
_UNNAMED_REVISION: Final = "2025-03-26"
"""What a client speaks that names no revision; the SDK takes it for the same."""
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
    """Answers plain calls of tools; stateless, as the endpoint is."""

    def __init__(
        self,
        calls_for: Callable[[Request], Calls],
        *,
        server_info: Mapping[str, Any],
        untold: Untold | None = None,
        is_traced: bool = False,
    ) -> None:
        """`calls_for` returns the calls that the address of a request lists.

        `server_info` is what the newest revision is told of this server with each answer. `untold` returns
        the messages that came for a run.

        With `is_traced` every call goes the SDK's way, which has a span of its own around each.
        """
        self._calls_for = calls_for
        self._untold = untold
        self._is_traced = is_traced
        self._envelope = {"resultType": "complete", "_meta": {f"{_MARK}serverInfo": dict(server_info)}}

    async def answer(self, scope: Scope, message: Mapping[str, Any]) -> Response | None:
        """Perform a call and return its answer; None, and nothing is done, when the SDK is to answer."""
        params = message.get("params")
        if message.get("method") != _CALL or not isinstance(params, dict) or message.keys() != _MESSAGE:
            return None
        headers = None if self._is_traced else _headers(scope)
        revision = None if headers is None else _revision(headers, params)
        if revision is None or not _is_valid(revision, params):
            return None
        arguments = params.get("arguments") or {}
        request = Request(scope)
        calls, caller = self._calls_for(request), caller_of(request)
        found = await answer_call(calls, params["name"], arguments, caller=caller, untold=self._untold)
        result = _result(found, client_of(request, params.get("_meta")))
        if revision == LATEST_MODERN_VERSION:
            result |= self._envelope
        document = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return Response(msgspec.json.encode(document, enc_hook=str), media_type="application/json")


def _headers(scope: Scope) -> dict[bytes, bytes] | None:
    """Return the headers that decide; None when one of them came twice or asks for another form."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _READ:
            if name in found:
                return None
            found[name] = value
    accepted = found.get(b"accept", b"*/*").decode("latin-1").lower().split(",")
    if not any(one.partition(";")[0].strip() in _JSON_TYPES for one in accepted):
        return None
    content_type = found.get(b"content-type", b"").partition(b";")[0]
    return found if content_type == b"application/json" else None


def _revision(headers: Mapping[bytes, bytes], params: Mapping[str, Any]) -> str | None:
    """Return the revision of a call whose headers and envelope agree on it; None for any other."""
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


def _is_valid(revision: str, params: dict[str, Any]) -> bool:
    meta = params.get("_meta")
    if not params.keys() <= _PARAMS or (isinstance(meta, dict) and meta.keys() & _TRACES):
        return False
    try:
        validate_client_request(_CALL, revision, params)
    except (ValueError, KeyError):  # what the models of the SDK raise is a ValueError
        return False
    return True


def _result(found: ToolAnswer, client: str) -> dict[str, Any]:
    texts, structured = found.told_to(client)
    content = [{"type": "text", "text": text} for text in texts]
    told = {} if structured is None else {"structuredContent": structured}
    return {"content": content, **told, "isError": found.is_error}
