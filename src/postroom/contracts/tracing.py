"""Traces, which connect calls, runs and answers in an external monitoring system.

A W3C `traceparent` is one line of text that names a position in a trace. A `traceparent` is stored with
messages and runs, so that the work that they cause continues the same trace. A span never contains text that
a person or an agent wrote.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol


class Span(Protocol):
    """A traced operation; an exception that is raised inside marks the operation as failed."""

    @property
    def traceparent(self) -> str | None:
        """The span's position in the trace, for work that continues it, or None without tracing."""
        ...

    def failed(self, kind: str) -> None:
        """Record a failure; `kind` is postroom's name for the kind of failure."""
        ...


class Tracing(Protocol):
    """Traces calls and runs; no method blocks, and none fails if the trace cannot be exported."""

    @property
    def is_on(self) -> bool:
        """Whether anything is traced; if not, callers can skip their preparations."""
        ...

    def executing(
        self, tool: str, *, follows: str | None = None, answers: str | None = None
    ) -> AbstractContextManager[Span]:
        """Trace a mail operation.

        The span continues the first trace that exists among the current span, `follows` (which the caller
        sent), and `answers` (the trace of the message that the operation answers).
        """
        ...

    def invoking(
        self, agent: str, *, thread_id: str, run_id: str, follows: Sequence[str] = ()
    ) -> AbstractContextManager[Span]:
        """Trace a run of an agent. The span belongs to the first trace in `follows` and links to the rest."""
        ...

    def traceparent(self) -> str | None:
        """Return the current span's position in the trace, or None if nothing is traced."""
        ...

    def close(self) -> None:
        """Export the remaining spans within seconds; this call blocks."""
        ...


class _Unwatched:
    traceparent: Final = None

    def failed(self, kind: str) -> None:
        """Do nothing."""


class NoTracing:
    """Tracing that is turned off."""

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
    """Return the name under which the trace position of a message is stored."""
    return f"message/{message_id}"


def run_trace(run_id: str) -> str:
    """Return the name under which the trace position of a run is stored."""
    return f"run/{run_id}"
