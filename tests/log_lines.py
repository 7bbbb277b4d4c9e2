"""The log of the code under test, as events with facts."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from postroom.log import LogLine


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        line: object = record.msg
        if isinstance(line, LogLine):
            facts = {"event": line.event, "log_level": record.levelname.lower(), **line.facts}
            self.lines.append(facts | ({"exc_info": True} if record.exc_info else {}))


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Give the lines that `postroom` logs within the block; each has its facts, `event` and `log_level`."""
    ours, handler = logging.getLogger("postroom"), _Lines()
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    try:
        yield handler.lines
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
