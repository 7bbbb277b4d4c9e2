"""Writes the logs of postroom and its libraries to standard error, in one format and without secrets.

Nothing is logged to standard output, because the stdio transport and the output of commands use it. Events
contain names, ids and counts, but never the text of a message.
"""

import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import UTC, datetime, timedelta
from typing import Final, TextIO

from postroom.app.config import Settings
from postroom.app.places import environment
from postroom.app.tokens import redact
from postroom.contracts.errors import PostroomError
from postroom.log import LogLine, bound_facts, get_logger, shown_fact

_SECRET_KEYS: Final = re.compile(
    r"(.*[_-])?(token|secret|password|passwd|authorization|cookie|api[_-]?key|credentials?)", re.IGNORECASE
)
_MESSAGE_KEYS: Final = frozenset({"body", "body_md", "markdown", "snippet"})
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_DEEPEST: Final = 6
_CHATTY: Final = ("asyncio", "httpcore2", "httpx2", "mcp", "sse_starlette", "uvicorn.error")
"""The loggers that may write only warnings and errors.

The HTTP clients would log whole addresses, which can contain a key. The HTTP server would log four lines at
each start.
"""
TOLD_AGAIN: Final = timedelta(minutes=1)
"""The time after which a failure that persists is logged again."""
_MAX_REPEATS: Final = 1_000
"""Maximum number of failures that are remembered. Any other failure is always logged."""
_FIRST: Final = ("timestamp", "level", "event", "logger")
"""The fields that come first in a line on a console."""
_COLORS: Final = {"warning": 33, "error": 31, "critical": 31}
_SERVER_LOGGERS: Final = ("uvicorn", "uvicorn.access", "uvicorn.error")


def configure_logs(settings: Settings, *, stream: TextIO | None = None) -> None:
    """Write all logs of this process to `stream` (default: stderr), in the configured format.

    The function may be called more than once.
    """
    target = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    handler = _Lines(target)
    has_colors = target.isatty() and "NO_COLOR" not in environment() and environment().get("TERM") != "dumb"
    handler.setFormatter(_Form(as_json=settings.log_format == "json", has_colors=has_colors))
    handler.addFilter(Repeats(time.monotonic))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _SERVER_LOGGERS:  # the logger's own handlers would write the line again, with secrets
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def log_refused_start(error: PostroomError, settings: Settings) -> None:
    """Log the reason why a server does not start."""
    configure_logs(settings)
    reason = {"code": error.code, "reason": error.message, "remedy": error.remedy}
    get_logger(__name__).error("serve.not_started", **reason)


def log_failure() -> OSError | None:
    """Return the error of the last write to the log, or None if the write succeeded."""
    failures = (handler.failure for handler in logging.getLogger().handlers if isinstance(handler, _Lines))
    return next(failures, None)


class _Lines(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.failure: OSError | None = None
        self._refused: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self._refused = None
        super().emit(record)
        self.failure = self._refused

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            self._refused = error
        else:
            super().handleError(record)


class Repeats(logging.Filter):
    """A log filter that suppresses repetitions of a warning within a minute.

    Only warnings with a `reason` are suppressed.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        super().__init__()
        self._seconds = seconds
        self._told: dict[object, tuple[float, int]] = {}
        """When each failure was last logged, and how many times it has occurred since then."""

    def __len__(self) -> int:
        return len(self._told)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a log record.

        A warning that was suppressed before gets a field `times` with the number of repetitions.
        """
        line: object = record.msg
        if not isinstance(line, LogLine) or record.levelno != logging.WARNING or "reason" not in line.facts:
            return True
        facts = sorted((name, repr(value)) for name, value in line.facts.items())
        key = (record.name, line.event, *facts)
        now, (since, times) = self._seconds(), self._told.get(key, (0.0, -1))
        if times >= 0 and now - since < TOLD_AGAIN.total_seconds():
            self._told[key] = since, times + 1
            return False
        if len(self._told) >= _MAX_REPEATS:  # remove old failures, or all if that does not make enough room
            recent = {
                key: entry for key, entry in self._told.items() if now - entry[0] < TOLD_AGAIN.total_seconds()
            }
            self._told = recent if len(recent) < _MAX_REPEATS else {}
        self._told[key] = now, 0
        if times > 0:
            record.msg = LogLine(line.event, {**line.facts, "times": times + 1})
        return True


class _Form(logging.Formatter):
    def __init__(self, *, as_json: bool, has_colors: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._has_colors = has_colors

    def format(self, record: logging.LogRecord) -> str:
        line = record.msg
        facts = line.facts if isinstance(line, LogLine) else {}
        try:
            text = line.event if isinstance(line, LogLine) else record.getMessage()
        except (TypeError, ValueError, KeyError) as error:
            text = f"{line} (its arguments do not fit: {error})"
        fields = {
            **bound_facts(),
            **facts,
            "event": text,
            "logger": record.name,
            "level": record.levelname.lower(),
        }
        shown = {name: _mask(name, value, 0) for name, value in fields.items()}
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        shown["timestamp"] = moment.replace("+00:00", "Z")
        is_raised = bool(record.exc_info and record.exc_info[0])
        trace = redact(self.formatException(record.exc_info)) if record.exc_info and is_raised else ""
        if self._as_json:
            return json.dumps({**shown, "exception": trace} if trace else shown)
        moment, level, event, logger = (str(shown.pop(name)) for name in _FIRST)
        told = [f"{name}={shown_fact(value)}" for name, value in shown.items()]
        label = f"{level:<8}"
        if self._has_colors and level in _COLORS:
            label = f"\x1b[{_COLORS[level]}m{label}\x1b[0m"
        line = " ".join([moment, f"[{label}]", f"{event:<30}", f"[{logger}]", *told])
        # Indent each line of a traceback, so that the text of an exception cannot look like a log line.
        return "\n  ".join([line, *map(_escape, trace.splitlines())])


def _escape(text: str) -> str:
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _mask(key: str, value: object, depth: int) -> object:
    if _SECRET_KEYS.fullmatch(key) and value:
        return "***"
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if key in _MESSAGE_KEYS:
        return f"<{len(value)} long>" if isinstance(value, Sized) else "<left out>"
    if depth >= _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {str(inner): _mask(str(inner), value, depth + 1) for inner, value in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes | bytearray):
        return [_mask("", item, depth + 1) for item in value]
    return _escape(redact(str(value)))
