"""Logs: structured events on standard error, ours and the libraries' in one form, with secrets masked.

Standard output belongs to the stdio transport and to commands' answers; nothing is logged there. Events hold
names, ids and counts, never the text of a message.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence, Sized
from datetime import timedelta
from typing import Any, Final, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import Processor

from postroom.app.config import Settings
from postroom.app.places import environment
from postroom.app.tokens import redact
from postroom.contracts.errors import PostroomError
from postroom.log import LogLine, get_logger

_SECRET_KEYS: Final = re.compile(
    r"(.*[_-])?(token|secret|password|passwd|authorization|cookie|api[_-]?key|credentials?)", re.IGNORECASE
)
_MESSAGE_KEYS: Final = frozenset({"body", "body_md", "markdown", "snippet"})
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_DEEPEST: Final = 6
_CHATTY: Final = ("asyncio", "httpcore2", "httpx2", "mcp", "sse_starlette")
"""The clients of HTTP among them write whole addresses, in which a person may have put a key."""
TOLD_AGAIN: Final = timedelta(minutes=1)
"""After so long a failure that goes on is told again."""
_MOST_REPEATS: Final = 1_000
"""So many failures are known at once; of more each is told."""
_SERVER_LOGGERS: Final = ("uvicorn", "uvicorn.access", "uvicorn.error")


def configure_logs(settings: Settings, *, stream: TextIO | None = None) -> None:
    """Send every log of this process to `stream` (standard error) in the configured form; repeatable."""
    target = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    handler = _Lines(target)
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=_shared(), processors=_last(settings.log_format, target))
    )
    handler.addFilter(Repeats(time.monotonic))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _SERVER_LOGGERS:  # its own handlers would write a second, unmasked line
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def log_refused_start(error: PostroomError, settings: Settings) -> None:
    """Log why a server does not start."""
    configure_logs(settings)
    reason = {"code": error.code, "reason": error.message, "remedy": error.remedy}
    get_logger(__name__).error("serve.not_started", **reason)


def log_failure() -> OSError | None:
    """Return why the last line could not be written; None when it was, or when logs go elsewhere."""
    found = (handler.failure for handler in logging.getLogger().handlers if isinstance(handler, _Lines))
    return next(found, None)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes the lines of the log; whoever logs goes on when one cannot be written, and health tells it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.failure: OSError | None = None
        self._refused: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line and note whether that went well."""
        self._refused = None
        super().emit(record)
        self.failure = self._refused

    def handleError(self, record: logging.LogRecord) -> None:
        """Note a refusal of the system; a traceback of it would go to the same full disk."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._refused = error
        else:
            super().handleError(record)


class Repeats(logging.Filter):
    """Leaves out warnings that repeat one of the last minute.

    Work in rounds (renewing leases, looking for due runs) fails with the store in each round, some times a
    second. Only lines with a `reason` count as the same: a log-in refused twice is two.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        """`seconds` is a clock that only goes forward."""
        super().__init__()
        self._seconds = seconds
        self._told: dict[object, tuple[float, int]] = {}
        """When a failure was told last, and how often it came since."""

    def __len__(self) -> int:
        return len(self._told)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written; one that came again after a minute says how often (`times`)."""
        line: object = record.msg
        if not isinstance(line, LogLine) or record.levelno != logging.WARNING or "reason" not in line.facts:
            return True
        facts = sorted((name, repr(value)) for name, value in line.facts.items())
        key = (record.name, line.event, *facts)
        now, (since, times) = self._seconds(), self._told.get(key, (0.0, -1))
        if times >= 0 and now - since < TOLD_AGAIN.total_seconds():
            self._told[key] = since, times + 1
            return False
        self._make_room(now)
        self._told[key] = now, 0
        if times > 0:
            record.msg = LogLine(line.event, {**line.facts, "times": times + 1})
        return True

    def _make_room(self, now: float) -> None:
        """Forget what is over, and all where that is too little."""
        if len(self._told) < _MOST_REPEATS:
            return
        recent = {key: told for key, told in self._told.items() if now - told[0] < TOLD_AGAIN.total_seconds()}
        self._told = recent if len(recent) < _MOST_REPEATS else {}


def mask(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask what must not be in a log; a structlog processor, the last before an event becomes text."""
    trace = event.pop("exception", None)
    masked: dict[str, Any] = {key: _masked(key, value, 0) for key, value in event.items()}
    if trace is not None:
        masked["exception"] = redact(str(trace))  # the one value that keeps its line breaks
    return masked


def _masked(key: str, value: object, depth: int) -> object:
    if _SECRET_KEYS.fullmatch(key) and value:
        return "***"
    if value is None or isinstance(value, bool | int | float):
        return value
    if key in _MESSAGE_KEYS:
        return f"<{len(value)} long>" if isinstance(value, Sized) else "<left out>"
    if depth >= _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {str(inner): _masked(str(inner), found, depth + 1) for inner, found in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes | bytearray):
        return [_masked("", found, depth + 1) for found in value]
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", redact(str(value)))


def _with_facts(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Take the facts of a line of ours apart; a structlog processor."""
    line = event["_record"].msg
    if isinstance(line, LogLine):
        event.update(line.facts, event=line.event)
    return event


def _shared() -> list[Processor]:
    return [
        _with_facts,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _last(form: str, stream: TextIO) -> list[Processor]:
    return [
        ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        mask,
        structlog.processors.JSONRenderer() if form == "json" else _console(stream),
    ]


def _console(stream: TextIO) -> Processor:
    colors = stream.isatty() and "NO_COLOR" not in environment()
    # Tracebacks are text before they are masked, so that the renderer must not make its own.
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
