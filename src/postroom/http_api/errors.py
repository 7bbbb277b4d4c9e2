"""Failures as HTTP answers: one table from class to status, one form (RFC 9457) for every refusal."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.responses import Response

from postroom.contracts import errors
from postroom.log import get_logger
from postroom.mcp_server.callers import scope_challenge

_LOG = get_logger(__name__)

STATUSES: Final[dict[type[errors.PostroomError], int]] = {
    errors.PostroomError: 500,
    errors.InputError: 400,
    errors.InvalidArgument: 400,
    errors.InvalidName: 400,
    errors.InvalidPattern: 400,
    errors.InvalidPath: 400,
    errors.InvalidRecipients: 400,
    errors.NameTaken: 409,
    errors.ToolNotListed: 404,
    errors.TooLarge: 413,
    errors.UnknownProject: 404,
    errors.UnknownAgent: 404,
    errors.UnknownMessage: 404,
    errors.UnknownThread: 404,
    errors.UnknownReservation: 404,
    errors.UnknownToken: 404,
    errors.UnknownRun: 404,
    errors.UnknownDispatch: 404,
    errors.InvalidStep: 400,
    errors.InvalidSchedule: 400,
    errors.UnknownSchedule: 404,
    errors.InvalidSubmission: 400,
    errors.InvalidRecord: 400,
    errors.ForeignThread: 400,
    errors.AgentNotFound: 404,
    errors.ResolveFailed: 400,
    errors.InvalidActivation: 400,
    errors.InvalidResume: 400,
    errors.InvalidRunner: 400,
    errors.RunnerNotFound: 404,
    errors.StateError: 409,
    errors.IdempotencyConflict: 409,
    errors.AgentRetired: 409,
    errors.ContactRequired: 403,
    errors.ContactBlocked: 403,
    errors.AlreadyRead: 409,
    errors.NotHolder: 409,
    errors.CursorExpired: 410,
    errors.CursorAhead: 409,
    errors.IllegalTransition: 409,
    errors.RunNotOpen: 409,
    errors.ActiveRunConflict: 409,
    errors.SubmissionRejected: 409,
    errors.DeliveryBlocked: 409,
    errors.DuplicateRecord: 409,
    errors.DedupeKeyInUse: 409,
    errors.VersionConflict: 409,
    errors.QueueFull: 429,
    errors.AlreadyConsumed: 409,
    errors.StaleDecision: 409,
    errors.MailboxClosed: 409,
    errors.MailboxForked: 409,
    errors.LifecycleBusy: 409,
    errors.ThreadAlreadyRunning: 409,
    errors.ResultConflict: 409,
    errors.StaleResult: 410,
    errors.ResultTooEarly: 425,
    errors.RunUnsuccessful: 409,
    errors.AccessError: 403,
    errors.TokenRequired: 401,
    errors.WrongToken: 401,
    errors.IdentityMismatch: 403,
    errors.WrongSignature: 401,
    errors.NotPermitted: 403,
    errors.InsufficientScope: 403,
    errors.StaleClaim: 500,
    errors.RunFailure: 500,
    errors.ExecutorFailed: 500,
    errors.DeadlinePassed: 500,
    errors.RunTimedOut: 500,
    errors.GiveUp: 500,
    errors.ExecutorMisbehaved: 500,
    errors.PhaseError: 500,
    errors.CommandError: 500,
    errors.RunnerSecretMissing: 500,
    errors.CommandNotStarted: 500,
    errors.PromptTooLong: 500,
    errors.CommandFailed: 500,
    errors.CommandSaidNothing: 500,
    errors.CommandTimedOut: 504,
    errors.CommandFlooded: 500,
    errors.CommandNotEnded: 500,
    errors.AgentProtocolBroken: 502,
    errors.AgentStopped: 500,
    errors.CommandBusy: 503,
    errors.CommandKilled: 503,
    errors.RemoteError: 502,
    errors.RemoteUnavailable: 503,
    errors.RemoteRefused: 502,
    errors.RemoteMisbehaved: 502,
    errors.RemoteFailed: 502,
    errors.RemoteTimedOut: 504,
    errors.InferenceError: 502,
    errors.InferenceFailed: 502,
    errors.ProviderFailed: 502,
    errors.RateLimited: 503,
    errors.Overloaded: 503,
    errors.InferenceTimeout: 504,
    errors.StreamInterrupted: 502,
    errors.ContextOverflow: 502,
    errors.RequestRefused: 502,
    errors.Unauthorized: 502,
    errors.ModelNotFound: 502,
    errors.NoModelEndpoint: 502,
    errors.ContentFiltered: 502,
    errors.InternalError: 500,
    errors.StoreError: 500,
    errors.StoreUnavailable: 503,
    errors.StoreClosed: 503,
    errors.StoreFull: 507,
    errors.StoreReadOnly: 503,
    errors.StoreCorrupt: 500,
    errors.RecordTooNew: 500,
    errors.CommitUnknown: 503,
    errors.StoreHeld: 503,
    errors.SchemaTooNew: 503,
    errors.WrongStore: 503,
    errors.ArchiveUnavailable: 503,
    errors.ServerUnavailable: 503,
    errors.MissingExtra: 501,
    errors.ConfigError: 500,
    errors.CredentialRefused: 502,
    errors.ClientFileRefused: 500,
    errors.ClientUnfit: 500,
}
"""A class that is not here has the status of the nearest one it descends from."""

CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="postroom"'}
"""Names no metadata: a client that found some would begin OAuth, which this server does not speak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A refusal, before it is an answer."""

    status: int
    code: str
    detail: str
    value: object = None
    remedy: str = ""
    retryable: bool = False
    details: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, request_id: str) -> Response:
        """Return the refusal as problem JSON."""
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


def status_of(error: errors.PostroomError) -> int:
    """Return the HTTP status of a failure."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_of(error: errors.PostroomError) -> Problem:
    """Return a failure as a refusal; what an access failure was about is not repeated."""
    status = status_of(error)
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
        detail=error.message,
        value=None if isinstance(error, errors.AccessError) else error.value,
        remedy=error.remedy,
        retryable=error.retryable,
        details=error.details,
        headers=headers,
    )


def reported(error: errors.PostroomError) -> Problem:
    """Return a failure as a refusal, and log it when it is the operator who must act."""
    problem = problem_of(error)
    if problem.status >= 500:
        _LOG.error("http.failed", code=error.code, reason=error.message, remedy=error.remedy)
    return problem


def internal_error() -> Problem:
    """Return the refusal for what nobody foresaw; the log has the rest under the request's id."""
    return Problem(
        status=500,
        code="internal_error",
        detail="the server failed on this request; the stored data is unchanged",
        remedy="tell the operator the request_id: the server's log has the cause",
    )
