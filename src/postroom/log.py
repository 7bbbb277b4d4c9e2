"""The loggers of modules. Their library is loaded when the first line is written, not when a module is."""

from typing import Any


class _Log:
    """A logger by name; what it has are the methods of structlog's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog  # 0.1 s of CPU, most of it rich

        return getattr(structlog.get_logger(self._name), method)


def get_logger(name: str) -> Any:
    """Return the logger of a module."""
    return _Log(name)
