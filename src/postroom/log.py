"""Loggers of the standard library with names `postroom.*`; the program decides where their lines go.

Each log line is an event with named facts. A handler shows it as `run.attempt_failed run_id=r1 attempt=1`.
The formatter of the server takes the facts from `record.msg` (a `LogLine`), and writes them in its own
format.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from postroom.contracts.errors import PostroomError

_SAYS_NO_MORE: Final = frozenset({"reason", "code", "remedy", "count", "work"})
"""Facts that concern only the error in a line. If the error was already reported, a warning about it without
other facts is not written.
"""
_PLAIN: Final = re.compile(r"[\w./:@+-]+")
_BOUND: Final = ContextVar[Mapping[str, Any]]("bound facts", default=MappingProxyType({}))
_CALLER: Final = 3
"""Number of stack frames between the call of `logging` and the code that logs."""


class LogLine:
    """The message of a log record: the name of an event, and named facts."""

    __slots__ = ("event", "facts")

    def __init__(self, event: str, facts: Mapping[str, Any]) -> None:
        self.event = event
        self.facts = facts

    def __str__(self) -> str:
        """Return the event and its facts on one line, followed by the lines of a traceback."""
        shown = [f"{name}={shown_fact(value)}" for name, value in self.facts.items() if name != "traceback"]
        line = " ".join([self.event, *shown])
        return f"{line}\n{self.facts['traceback']}".rstrip() if "traceback" in self.facts else line


class Logger:
    """Writes events with facts to a logger of the standard library."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **facts: Any) -> None:
        """Log an event for developers."""
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        """Log an event of normal operation, such as a success."""
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """Log a failure that is temporary, or is also reported elsewhere."""
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        """Log a failure that needs attention."""
        self._write(logging.ERROR, event, facts)

    def exception(self, event: str, **facts: Any) -> None:
        """Log a failure with the traceback of the current exception."""
        self._write(logging.ERROR, event, {"exc_info": True, **facts})

    def _write(self, level: int, event: str, facts: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        trace = facts.pop("exc_info", None)
        error, reason = sys.exception(), facts.get("reason")
        if (
            isinstance(error, PostroomError)
            and isinstance(reason, str)
            and ((error.message and error.message in reason) or reason == type(error).__name__)
        ):
            if error.is_told and level == logging.WARNING and facts.keys() <= _SAYS_NO_MORE:
                return  # the line would only repeat an earlier line
            facts.setdefault("code", error.code)
            if error.remedy:
                facts.setdefault("remedy", error.remedy)
        self._logger.log(level, LogLine(event, facts), exc_info=trace, stacklevel=_CALLER)


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(name)


def bound_facts() -> Mapping[str, Any]:
    """Return the facts that are added to every log line of the current task, such as the request id."""
    return _BOUND.get()


@contextmanager
def binding(**facts: Any) -> Iterator[None]:
    """Add facts to every log line of the current task, and of tasks that it starts, within the context."""
    token = _BOUND.set({**_BOUND.get(), **facts})
    try:
        yield
    finally:
        _BOUND.reset(token)


def shown_fact(value: object) -> str:
    """Return the text of a fact for a log line, in quotes unless the text is a plain word."""
    text = value if isinstance(value, str) else repr(value)
    return text if not isinstance(value, str) or _PLAIN.fullmatch(text) else repr(text)
