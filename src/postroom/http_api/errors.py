"""Converts errors to HTTP responses in the form of RFC 9457 (problem JSON)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.responses import Response

from postroom.contracts import errors
from postroom.contracts.operations import Operation
from postroom.http_api.words import over_http
from postroom.log import get_logger
from postroom.mcp_server.callers import scope_challenge
from postroom.services.statuses import status_of

_LOG = get_logger(__name__)

CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="postroom"'}
"""The header WWW-Authenticate, which names no OAuth metadata.

A client that finds metadata would start OAuth, which is not supported.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error with the status, code and details of an HTTP response."""

    status: int
    code: str
    detail: str
    value: object = None
    remedy: str = ""
    retryable: bool = False
    details: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, request_id: str) -> Response:
        """Return the error as a response with problem JSON (RFC 9457)."""
        document = {
            "type": f"urn:postroom:problem:{self.code}",
            "title": self.code.replace("_", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "value": self.value,
            "remedy": self.remedy,
            "retryable": self.retryable,
            "details": self.details,
            "request_id": request_id,
        }
        return Response(
            json.dumps(document, default=str),
            status_code=self.status,
            headers=dict(self.headers),
            media_type="application/problem+json",
        )


def to_problem(error: errors.PostroomError, operation: Operation | None = None) -> Problem:
    """Convert an error to the HTTP form; an access error does not repeat the rejected value.

    `operation` is the failed operation, or None if the request has not reached an operation.
    """
    status, details = status_of(error), error.details
    refused = details.get("recipients")
    if isinstance(refused, list):  # each of them has a message and a remedy
        values = [
            {
                key: over_http(text, operation) if key in ("message", "remedy") else text
                for key, text in item.items()
            }
            for item in refused
            if isinstance(item, dict)
        ]
        details = {**details, "recipients": values}
    headers: dict[str, str] = {}
    if status == 401:
        headers = dict(CHALLENGE)
    elif isinstance(error, errors.InsufficientScope):
        headers = {"WWW-Authenticate": scope_challenge(error)}
    elif error.retryable:
        headers = {"Retry-After": "1"}
    return Problem(
        status=status,
        code=error.code,
        detail=over_http(error.message, operation),
        value=None if isinstance(error, errors.AccessError) else error.value,
        remedy=over_http(error.remedy, operation),
        retryable=error.retryable,
        details=details,
        headers=headers,
    )


def reported(error: errors.PostroomError, operation: Operation | None = None) -> Problem:
    """Convert an error to the HTTP form, and log server errors."""
    problem = to_problem(error, operation)
    if problem.status >= 500:
        _LOG.error("http.failed", code=error.code, reason=error.message, remedy=error.remedy)
    return problem


def internal_error() -> Problem:
    """Return the HTTP form of an unexpected exception."""
    return Problem(
        status=500,
        code="internal_error",
        detail="the server failed on this request; the stored data is unchanged",
        remedy="tell the operator the request_id: the server's log has the cause",
    )
