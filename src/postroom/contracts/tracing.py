"""Traces: what of calls, runs and answers belongs together, for who watches from outside.

What names a place in a trace is one line of text, the W3C `traceparent`. It is kept with messages and runs,
so that what follows from them goes on in the same trace. No span holds anything that somebody wrote.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoked:
    """An agent whose run is at work."""

    name: str
    project: str
    thread_id: str
    run_id: str


class Span(Protocol):
    """Something that takes time and is watched; what is raised inside makes it a failed one."""

    @property
    def traceparent(self) -> str | None:
        """Its place in the trace, for what follows from it; None when it is not watched."""
        ...

    def failed(self, kind: str) -> None:
        """Note that it failed, and how in one word of ours."""
        ...


class Tracing(Protocol):
    """Watches calls and runs. Nothing here blocks, and nothing fails when nobody can be told."""

    @property
    def is_on(self) -> bool:
        """Whether anything is watched; if not, nothing has to be looked up for it."""
        ...

    def executing(
        self, tool: str, *, follows: str | None = None, answers: str | None = None
    ) -> AbstractContextManager[Span]:
        """Watch an operation of the mail room.

        It goes on in the trace of what called it: what is at work here, else `follows`, which a caller said
        of itself, else `answers`, where the message was written that it answers.
        """
        ...

    def invoking(self, agent: Invoked, *, follows: Sequence[str] = ()) -> AbstractContextManager[Span]:
        """Watch a run: it goes on in the trace of the first that it follows, and points to the others."""
        ...

    def traceparent(self) -> str | None:
        """Return the place in the trace of what is at work here; None when that is not watched."""
        ...

    def close(self) -> None:
        """Tell what is left to be told, within seconds. Blocks."""
        ...


class _Unwatched:
    traceparent: Final = None

    def failed(self, kind: str) -> None:
        """Note nothing."""


class NoTracing:
    """Watches nothing."""

    is_on: Final = False

    def executing(
        self, tool: str, *, follows: str | None = None, answers: str | None = None
    ) -> AbstractContextManager[Span]:
        """Watch nothing."""
        return nullcontext(_UNWATCHED)

    def invoking(self, agent: Invoked, *, follows: Sequence[str] = ()) -> AbstractContextManager[Span]:
        """Watch nothing."""
        return nullcontext(_UNWATCHED)

    def traceparent(self) -> str | None:
        """Return nothing."""
        return None

    def close(self) -> None:
        """Tell nothing."""


_UNWATCHED: Final = _Unwatched()
OFF: Final = NoTracing()
