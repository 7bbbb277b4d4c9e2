"""The loggers of modules. Their library is loaded when the first line is written, not when a module is.

A program that sets structlog up decides where lines go and what they show. Elsewhere, in a program that uses
the library, they go to stderr, with plain tracebacks: structlog's own way shows the values of all variables.
"""

import sys
from typing import Any


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
