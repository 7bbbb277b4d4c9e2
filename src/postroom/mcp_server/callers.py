"""Who sent a request: what the door marked it with, and what its headers say."""

from typing import Final

from starlette.requests import Request

from postroom.mail.context import Caller

AGENT_TOKEN_HEADER: Final = "postroom-agent-token"  # noqa: S105 - the name of a header
AGENT_TOKEN_SCOPE: Final = "postroom.agent_token"  # noqa: S105 - the name of a key
OPERATOR_SCOPE: Final = "postroom.operator"
TRACEPARENT: Final = "traceparent"
GRANT_SCOPE: Final = "postroom.grant"


def caller_of(request: Request) -> Caller:
    """Return who sent a request: the door's marks, or an agent's token beside the operator's."""
    token = request.scope.get(AGENT_TOKEN_SCOPE) or request.headers.get(AGENT_TOKEN_HEADER)
    return Caller(
        agent_token=token,
        operator=bool(request.scope.get(OPERATOR_SCOPE)),
        grant=request.scope.get(GRANT_SCOPE),
    )
