"""Traces, which connect calls, runs and answers in an external monitoring system.

A W3C `traceparent` is one line of text that names a position in a trace. A `traceparent` is stored with
messages and runs, so that the work that they cause continues the same trace. A span never contains text that
a person or an agent wrote.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol


class Span(Protocol):
    """A traced operation.

    An exception inside the span marks the operation as failed.
    """

    @property
    def traceparent(self) -> str | None:
        """The position of the span in the trace, or None without tracing."""
        ...

    def failed(self, kind: str) -> None:
        """Record that the traced operation failed; `kind` is the kind of failure."""
        ...


class Tracing(Protocol):
    """Traces calls and runs.

    A failed export of a trace raises no error.
    """

    @property
    def is_on(self) -> bool:
        """Whether tracing is turned on."""
        ...

    def executing(
        self, tool: str, *, follows: str | None = None, answers: str | None = None
    ) -> AbstractContextManager[Span]:
        """Trace a mail operation.

        `follows` is the trace position that the caller sent. `answers` is the trace position of the message
        to which the operation replies.
        """
        ...

    def invoking(
        self, agent: str, *, thread_id: str, run_id: str, follows: Sequence[str] = ()
    ) -> AbstractContextManager[Span]:
        """Trace a run of an agent.

        The span belongs to the first trace in `follows`, and links to the remaining traces.
        """
        ...

    def traceparent(self) -> str | None:
        """Return the position of the current span in the trace, or None without a span."""
        ...

    def close(self) -> None:
        """Export the remaining spans.

        Blocks for a few seconds at most.
        """
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
