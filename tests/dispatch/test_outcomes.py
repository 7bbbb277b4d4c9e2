"""What the end of an execution means for its dispatch: consumed, tried again, or given up."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.contracts.errors import (
    AgentNotFound,
    ContentFiltered,
    ContextOverflow,
    InferenceError,
    InferenceFailed,
    InferenceTimeout,
    InvalidActivation,
    InvalidResume,
    ModelNotFound,
    NoModelEndpoint,
    Overloaded,
    PhaseError,
    PostroomError,
    ProviderFailed,
    RateLimited,
    RequestRefused,
    ResolveFailed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StreamInterrupted,
    ThreadAlreadyRunning,
    Unauthorized,
    all_errors,
)
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.runs import TerminationReason
from postroom.dispatch.completion import COMPLETED, OutcomeKind, classify
from table_rows import each_row

TRANSIENT, PERMANENT = OutcomeKind.TRANSIENT_ERROR, OutcomeKind.PERMANENT_ERROR

INFERENCE = {
    ProviderFailed: TRANSIENT,
    RateLimited: TRANSIENT,
    Overloaded: TRANSIENT,
    InferenceTimeout: TRANSIENT,
    StreamInterrupted: TRANSIENT,
    InferenceFailed: TRANSIENT,
    Unauthorized: PERMANENT,
    ContextOverflow: PERMANENT,
    RequestRefused: PERMANENT,
    ModelNotFound: PERMANENT,
    NoModelEndpoint: PERMANENT,
    ContentFiltered: PERMANENT,
}


def assert_outcome(error: PostroomError, kind: OutcomeKind) -> None:
    """The error has this outcome, which keeps its text."""
    outcome = classify(error)
    assert (outcome.kind, outcome.error) == (kind, error.describe())
    assert error.message in outcome.error


@each_row(
    "termination",
    [
        TerminationReason.natural_end(),
        TerminationReason.suspended(),
        TerminationReason.cancelled(),
        TerminationReason.error("inside the run"),
    ],
)
def test_classify_error_ok_is_completed(termination: TerminationReason) -> None:
    result = AgentRunResult(run_id="run-1", response="done", termination=termination, steps=1)
    assert classify(result) == COMPLETED
    assert COMPLETED.kind is OutcomeKind.COMPLETED


def test_classify_error_thread_already_running_is_permanent() -> None:
    assert_outcome(ThreadAlreadyRunning("thread 't1' runs already", value="t1"), PERMANENT)


def test_classify_error_agent_not_found_is_permanent() -> None:
    assert_outcome(AgentNotFound("agent 'missing' is not registered", value="missing"), PERMANENT)


def test_classify_error_resolve_failed_is_permanent() -> None:
    assert_outcome(ResolveFailed("not found"), PERMANENT)


def test_classify_error_storage_error_is_transient() -> None:
    assert_outcome(StoreFull("disk full"), TRANSIENT)
    assert_outcome(StoreUnavailable("no answer"), TRANSIENT)
    for kind in all_errors():
        if issubclass(kind, StoreError):
            assert_outcome(kind("the store failed"), TRANSIENT)


def test_classify_error_inference_failed_is_transient() -> None:
    assert_outcome(InferenceFailed("timeout"), TRANSIENT)


def test_classify_error_invalid_activation_is_permanent() -> None:
    assert_outcome(InvalidActivation("blank thread"), PERMANENT)


def test_classify_error_permanent_inference_error_is_permanent() -> None:
    assert_outcome(Unauthorized("403 pre_consume_token_quota_failed"), PERMANENT)


def test_classify_error_context_overflow_is_permanent() -> None:
    assert_outcome(ContextOverflow("prompt is too long"), PERMANENT)


def test_classify_error_model_not_found_is_permanent() -> None:
    assert_outcome(ModelNotFound("404 unknown model"), PERMANENT)


def test_classify_error_transient_inference_error_is_transient() -> None:
    assert_outcome(RateLimited("429 too many requests"), TRANSIENT)
    assert_outcome(ProviderFailed("502 bad gateway"), TRANSIENT)


def test_classify_error_covers_all_inference_variants() -> None:
    kinds = {kind for kind in all_errors() if issubclass(kind, InferenceError)} - {InferenceError}
    assert kinds == INFERENCE.keys(), "a variant was added: say what it means for the dispatch"
    for kind, expected in INFERENCE.items():
        assert kind.retryable is (expected is TRANSIENT), kind
        assert_outcome(kind("what the provider said"), expected)


def test_classify_error_phase_error_is_completed() -> None:
    assert classify(PhaseError("unknown state key 'bad'")) == COMPLETED


def test_classify_error_invalid_resume_is_completed() -> None:
    assert classify(InvalidResume("bad resume")) == COMPLETED


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    message=st.text(),
    retry_after_ms=st.none() | st.integers(min_value=0, max_value=10_000),
    make=st.sampled_from(sorted(INFERENCE, key=lambda kind: kind.__name__)),
)
def test_classify_error_always_agrees_with_is_retryable(
    message: str, retry_after_ms: int | None, make: Callable[..., InferenceError]
) -> None:
    error = make(message, retry_after_ms=retry_after_ms)
    outcome = classify(error)
    assert outcome.kind is (TRANSIENT if error.retryable else PERMANENT)
    assert outcome.error.endswith(message)
    assert outcome.retry_after_ms == retry_after_ms


def test_what_says_nothing_about_trying_again_is_tried_again() -> None:
    outcome = classify(ValueError("who knows"))
    assert (outcome.kind, outcome.error) == (TRANSIENT, "ValueError: who knows")
