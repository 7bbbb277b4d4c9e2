"""Identifies the caller of an MCP request, and checks the scopes of the caller's token.

The handler that performs an allowed message checks its scopes again. Unknown methods need no scope.
"""

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

from postroom.contracts.clients import CLIENT_HEADER
from postroom.contracts.errors import InsufficientScope
from postroom.contracts.tokens import Grant
from postroom.mail.context import Caller
from postroom.mail.operations import OPERATIONS
from postroom.mcp_server.resources import match_resource

AGENT_TOKEN_HEADER: Final = "postroom-agent-token"  # noqa: S105 - the name of a header
AGENT_TOKEN_SCOPE: Final = "postroom.agent_token"  # noqa: S105 - the name of a key
OPERATOR_SCOPE: Final = "postroom.operator"
TRACEPARENT: Final = "traceparent"
GRANT_SCOPE: Final = "postroom.grant"


def read_caller(request: Request) -> Caller:
    """Return the authenticated caller of a request."""
    token = request.scope.get(AGENT_TOKEN_SCOPE) or request.headers.get(AGENT_TOKEN_HEADER)
    grant = request.scope.get(GRANT_SCOPE)
    return Caller(
        agent_token=token,
        operator=bool(request.scope.get(OPERATOR_SCOPE)),
        agent_id=None if grant is None else grant.agent_id,
        run_id=None if grant is None else grant.run_id,
        claim=None if grant is None else grant.claim,
        grant=grant,
    )


def read_client_name(request: Request | None, meta: Mapping[str, Any] | None) -> str:
    """Return the name of the client program from the HTTP header or the call's metadata, or ""."""
    if request is not None and (named := request.headers.get(CLIENT_HEADER)):
        return named
    about = (meta or {}).get("io.modelcontextprotocol/clientInfo")
    return str(about.get("name", "")) if isinstance(about, Mapping) else ""


def refuse_message(grant: Grant, message: Mapping[str, Any]) -> None:
    """Raise an error if a grant does not permit an MCP message.

    Raises:
        InsufficientScope: The token lacks a scope that the call, the read or the subscription needs.
        NotPermitted: The token is bound to a project, but the message subscribes to another project.
    """
    params = message.get("params") or {}
    match message.get("method"):
        case "tools/call":
            operation = OPERATIONS.get(str(params.get("name")))
            if operation is not None:
                operation.check(grant)
        case "resources/read":
            _refuse_reading(grant, str(params.get("uri")))
        case "completion/complete":
            ref = params.get("ref")
            _refuse_reading(grant, str(ref.get("uri")) if isinstance(ref, Mapping) else "")
        case "subscriptions/listen":
            wanted = params.get("notifications")
            uris = wanted.get("resourceSubscriptions") if isinstance(wanted, Mapping) else None
            for uri in [str(uri) for uri in uris] if isinstance(uris, list) else []:
                _refuse_reading(grant, uri, listens=True)


def _refuse_reading(grant: Grant, uri: str, *, listens: bool = False) -> None:
    kind = match_resource(uri)
    if kind is not None:
        OPERATIONS[kind[0].operation].check(grant, slug=kind[1]["project"] if listens else None)


def scope_challenge(error: InsufficientScope) -> str:
    """Return the WWW-Authenticate header (RFC 6750) that lists the missing scopes."""
    needed = error.details.get("needed")
    scopes = " ".join(map(str, needed)) if isinstance(needed, list) else ""
    return f'Bearer realm="postroom", error="insufficient_scope", scope="{scopes}"'
