"""Repeated failures: the log has each at first, and then one a minute."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from postroom.app.config import Settings
from postroom.app.logs import TOLD_AGAIN, Repeats, configure_logs
from postroom.contracts.errors import StoreError, StoreUnavailable
from postroom.log import LogLine, get_logger


class Seconds:
    """A clock to move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """A log of JSON lines; the former log continues afterwards."""
    root, before = logging.getLogger(), logging.getLogger().handlers
    lines = io.StringIO()
    configure_logs(Settings(log_format="json"), stream=lines)
    yield lines
    root.handlers = before


def lines(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_failure_that_is_told_already_is_told_once(written: io.StringIO) -> None:
    log = get_logger("postroom.relay")
    for reason in ("gone", "gone", "another", "gone"):
        log.warning("relay.store_failed", code="store_read_only", reason=reason)
    assert [line["reason"] for line in lines(written)] == ["gone", "another"]


def failing(error: Exception, reason: str, **more: str) -> None:
    """Meet an error, and log it as those do who go on without what failed."""
    try:
        raise error
    except type(error):
        get_logger("postroom.leases").warning("leases.not_renewed", reason=reason, **more)


def test_the_line_about_an_error_has_its_code_and_its_remedy(written: io.StringIO) -> None:
    error = StoreUnavailable("PostgreSQL is gone", remedy="start it")
    for reason in (error.describe(), error.message, f"not yet: {error}", "StoreUnavailable"):
        failing(error, reason)
    assert [(line["code"], line["remedy"]) for line in lines(written)] == [
        ("store_unavailable", "start it")
    ] * 4


def test_the_line_about_something_else_has_no_code_of_an_error_that_is_handled_meanwhile(
    written: io.StringIO,
) -> None:
    failing(StoreUnavailable("PostgreSQL is gone"), "the program takes too long")
    failing(ValueError("no number"), "no number")
    failing(StoreError("refused", remedy=""), "refused")
    assert [line.get("code") for line in lines(written)] == [None, None, "store_error"]
    assert "remedy" not in lines(written)[2]


def test_the_callers_words_stay_and_who_only_repeats_a_failure_that_was_told_is_left_out(
    written: io.StringIO,
) -> None:
    failing(StoreUnavailable("gone", remedy="start it"), "gone", code="mine", remedy="wait")
    error = StoreUnavailable("gone too")
    error.is_told = True
    failing(error, error.describe())
    failing(error, error.describe(), thread_id="t1")
    first, second = lines(written)
    assert (first["code"], first["remedy"], second["thread_id"]) == ("mine", "wait", "t1")


def test_what_has_no_reason_is_told_each_time(written: io.StringIO) -> None:
    """A log-in that is refused a hundred times is a hundred log-ins."""
    for _ in range(3):
        get_logger("postroom.http_api").warning("login.refused", address="192.0.2.1")
        get_logger("postroom.http_api").info("store.gone_on", reason="it was asked to")
    assert len(lines(written)) == 6


def repeated(repeats: Repeats, event: str, **facts: str) -> dict[str, Any] | None:
    """Return the facts that a line is written with; None if it is left out."""
    line = LogLine(event, facts)
    record = logging.LogRecord("postroom.leases", logging.WARNING, "", 0, line, None, None)
    return dict(record.msg.facts) if repeats.filter(record) else None  # type: ignore[attr-defined]


def test_after_a_minute_it_is_told_again_with_how_often_it_came() -> None:
    seconds = Seconds()
    repeats = Repeats(seconds)

    def told() -> dict[str, Any] | None:
        return repeated(repeats, "leases.not_renewed", reason="gone")

    assert told() == {"reason": "gone"}
    for _ in range(4):
        seconds.now += TOLD_AGAIN.total_seconds() / 5
        assert told() is None
    seconds.now = TOLD_AGAIN.total_seconds()
    assert told() == {"reason": "gone", "times": 5}
    assert told() is None


def test_very_many_different_failures_take_no_more_and_more_room() -> None:
    repeats = Repeats(Seconds())
    for number in range(5_000):
        repeated(repeats, "a", reason=str(number))
    assert len(repeats) <= 1_000
