"""Maps the refusal of a model's endpoint to our kinds of failure, which decide whether to try again."""

from collections.abc import Mapping
from typing import Any

from postroom.contracts.errors import (
    ContentFiltered,
    ContextOverflow,
    InferenceError,
    InferenceTimeout,
    ModelNotFound,
    Overloaded,
    ProviderFailed,
    RateLimited,
    RequestRefused,
    Unauthorized,
)
from postroom.contracts.retrying import retry_after_ms

LONGEST_EXCERPT = 500

_BY_CODE: dict[str, type[InferenceError]] = {
    "context_length_exceeded": ContextOverflow,
    "string_above_max_length": ContextOverflow,
    "content_filter": ContentFiltered,
    "content_policy_violation": ContentFiltered,
    "model_not_found": ModelNotFound,
    "invalid_api_key": Unauthorized,
    "insufficient_quota": Unauthorized,
    "billing_hard_limit_reached": Unauthorized,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "overloaded_error": Overloaded,
    "server_error": ProviderFailed,
}
_BY_STATUS: dict[int, type[InferenceError]] = {
    401: Unauthorized,
    402: Unauthorized,
    403: Unauthorized,
    404: ModelNotFound,
    408: InferenceTimeout,
    409: ProviderFailed,
    413: ContextOverflow,
    425: ProviderFailed,
    429: RateLimited,
    503: Overloaded,
    504: InferenceTimeout,
    529: Overloaded,
}


def failure_of(status: int, headers: Mapping[str, str], said: object, *, now: int) -> InferenceError:
    """Return what a refusal means. A code in the body says more than the status and wins over it."""
    error = _error(said)
    kind = _kind_by_code(error) or _BY_STATUS.get(status)
    if kind is None:
        kind = ProviderFailed if status >= 500 else RequestRefused
    return kind(
        f"the model's endpoint answered {status}: {_text(error)}",
        value=status,
        retry_after_ms=retry_after_ms(headers, now=now),
    )


def failure_in_stream(said: object) -> InferenceError:
    """Return what an error within an answer means; without a known code it may pass."""
    error = _error(said)
    code = error.get("code")
    kind = _kind_by_code(error) or (_BY_STATUS.get(code) if isinstance(code, int) else None)
    return (kind or ProviderFailed)(f"the model's endpoint broke off: {_text(error)}", value=code)


def _error(said: object) -> dict[str, Any]:
    return said if isinstance(said, dict) else {"message": said}


def _text(error: dict[str, Any]) -> str:
    return str(error.get("message") or "")[:LONGEST_EXCERPT] or "no reason given"


def _kind_by_code(error: dict[str, Any]) -> type[InferenceError] | None:
    named = (_BY_CODE.get(code) for code in (error.get("code"), error.get("type")) if isinstance(code, str))
    return next((kind for kind in named if kind), None)
