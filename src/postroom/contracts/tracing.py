"""Traces, which connect calls, runs and answers for external monitoring.

The W3C `traceparent`, one line of text, names a place in a trace. It is stored with messages and runs, so
that work that follows from them continues the same trace. No span contains text that a person or an agent
wrote.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol


class Span(Protocol):
    """A traced operation; an exception raised inside it marks it as failed."""

    @property
    def traceparent(self) -> str | None:
        """The position of this span in the trace, for work that it causes later; None if it is not traced."""
        ...

    def failed(self, kind: str) -> None:
        """Record a failure, with postroom's one-word name for its kind."""
        ...


class Tracing(Protocol):
    """Traces calls and runs. No method blocks, and none fails if the trace cannot be exported."""

    @property
    def is_on(self) -> bool:
        """Whether anything is traced; if not, callers can skip lookups."""
        ...

    def executing(
        self, tool: str, *, follows: str | None = None, answers: str | None = None
    ) -> AbstractContextManager[Span]:
        """Trace a mail operation.

        The span continues the first trace that exists of these: the current span, `follows` (sent by the
        caller), and `answers` (the trace of the message that the operation answers).
        """
        ...

    def invoking(
        self, agent: str, *, thread_id: str, run_id: str, follows: Sequence[str] = ()
    ) -> AbstractContextManager[Span]:
        """Trace a run of an agent: it continues the first trace of `follows` and links to the others."""
        ...

    def traceparent(self) -> str | None:
        """Return the position of the current span in the trace; None if it is not traced."""
        ...

    def close(self) -> None:
        """Export the remaining spans within seconds. Blocks."""
        ...


class _Unwatched:
    traceparent: Final = None

    def failed(self, kind: str) -> None:
        """Do nothing."""


class NoTracing:
    """Traces nothing."""

    is_on: Final = False

    def executing(
        self, tool: str, *, follows: str | None = None, answers: str | None = None
    ) -> AbstractContextManager[Span]:
        """Return a span that traces nothing."""
        return nullcontext(_UNWATCHED)

    def invoking(
        self, agent: str, *, thread_id: str, run_id: str, follows: Sequence[str] = ()
    ) -> AbstractContextManager[Span]:
        """Return a span that traces nothing."""
        return nullcontext(_UNWATCHED)

    def traceparent(self) -> str | None:
        """Return None."""
        return None

    def close(self) -> None:
        """Do nothing."""


_UNWATCHED: Final = _Unwatched()
OFF: Final = NoTracing()


def message_trace(message_id: int | str) -> str:
    """Return the name under which a message's trace position is stored."""
    return f"message/{message_id}"


def run_trace(run_id: str) -> str:
    """Return the name under which a run's trace position is stored."""
    return f"run/{run_id}"
