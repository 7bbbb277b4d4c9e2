"""Why a model's endpoint refused, as one of the house's kinds: it decides whether to try again, and when."""

import json
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


def failure_of(status: int, headers: Mapping[str, str], body: bytes, *, now: int) -> InferenceError:
    """Return what a refusal means. A code in the body says more than the status, and goes before it."""
    said = _error_in(body)
    kind = _kind_by_code(said) or _BY_STATUS.get(status)
    if kind is None:
        kind = ProviderFailed if status >= 500 else RequestRefused
    text = str(said.get("message") or "")[:LONGEST_EXCERPT] or "no reason given"
    return kind(
        f"the model's endpoint answered {status}: {text}",
        value=status,
        retry_after_ms=retry_after_ms(headers, now=now),
    )


def failure_in_stream(said: Any) -> InferenceError:
    """Return what an error within an answer means; without a code that is known it may pass."""
    error = said if isinstance(said, dict) else {"message": said}
    code = error.get("code")
    kind = _kind_by_code(error) or (_BY_STATUS.get(code) if isinstance(code, int) else None)
    text = str(error.get("message") or "")[:LONGEST_EXCERPT] or "no reason given"
    return (kind or ProviderFailed)(f"the model's endpoint broke off: {text}", value=code)


def _error_in(body: bytes) -> dict[str, Any]:
    text = body.decode(errors="replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {"message": text.strip()}
    error = said.get("error", said) if isinstance(said, dict) else said
    return error if isinstance(error, dict) else {"message": str(error)}


def _kind_by_code(error: dict[str, Any]) -> type[InferenceError] | None:
    named = (_BY_CODE.get(code) for code in (error.get("code"), error.get("type")) if isinstance(code, str))
    return next((kind for kind in named if kind), None)
