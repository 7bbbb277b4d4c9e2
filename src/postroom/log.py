"""The loggers of modules. Their library is loaded when the first line is written, not when a module is.

A program that sets structlog up decides where lines go and what they show. Elsewhere, in a program that uses
the library, they go to stderr, with plain tracebacks: structlog's own way shows the values of all variables.
"""

import sys
from collections.abc import MutableMapping
from typing import Any, Final

from postroom.contracts.errors import PostroomError

_SAYS_NO_MORE: Final = frozenset(
    {"event", "reason", "code", "remedy", "count", "work", "level", "logger", "timestamp", "request_id"}
)
"""What a line about an error has that concerns nothing but the error."""


def about_error(_logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Give a line about the typed error that is handled its code and its remedy; a structlog processor.

    Here, for whoever handles one logs it as a `reason`, and what the reason is of can be seen from here.

    Raises:
        structlog.DropEvent: a line says so already, and this one says no more.
    """
    error = sys.exception()
    reason = event.get("reason")
    if not (isinstance(error, PostroomError) and isinstance(reason, str) and _is_of(error, reason)):
        return event
    if error.is_told and method == "warning" and event.keys() <= _SAYS_NO_MORE:
        from structlog import DropEvent

        raise DropEvent
    event.setdefault("code", error.code)
    if error.remedy:
        event.setdefault("remedy", error.remedy)
    return event


def _is_of(error: PostroomError, reason: str) -> bool:
    return bool(error.message and error.message in reason) or reason == type(error).__name__


class _Log:
    """A logger by name; what it has are the methods of structlog's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog  # 0.1 s of CPU, most of it rich

        if structlog.is_configured():
            return getattr(structlog.get_logger(self._name), method)
        plain = structlog.wrap_logger(
            structlog.PrintLogger(sys.stderr),
            processors=[
                structlog.contextvars.merge_contextvars,
                about_error,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.dev.ConsoleRenderer(
                    colors=False, exception_formatter=structlog.dev.plain_traceback
                ),
            ],
        )
        return getattr(plain, method)


def get_logger(name: str) -> Any:
    """Return the logger of a module."""
    return _Log(name)
