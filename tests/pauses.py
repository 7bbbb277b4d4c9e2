"""Pauses reads and writes of the stores at random, as a slow disk does: tests that assume a speed then fail."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from postroom.stores.postgres.engine import PostgresEngine
from postroom.stores.sqlite.engine import SqliteEngine

LONGEST: Final = 0.03
"""The longest pause, in seconds. It precedes every fifth call, and follows every tenth."""
IN_ORDER: Final = (
    "dispatch/test_limits.py::test_who_is_kept_back",
    "dispatch/test_workers.py::test_concurrent_submit_background_same_thread_only_one_runs",
    "faults/test_postgres_engine.py",
    "faults/test_sqlite_writer.py",
    "unit/test_postgres_runs.py::test_closing_answers_what_was_asked_before_and_refuses_what_comes_later",
)
"""The tests whose subject is the order or the grouping of calls, which pauses change."""


class Pauses:
    """A plug-in of pytest that pauses the stores of all tests but those in `IN_ORDER`."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._is_on = False
        for engine in (SqliteEngine, PostgresEngine):
            for name in ("read", "write"):
                setattr(engine, name, self._paused(getattr(engine, name)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Pause the stores while a test runs."""
        self._is_on = not item.nodeid.removeprefix("tests/").startswith(IN_ORDER)
        try:
            return (yield)
        finally:
            self._is_on = False

    def _paused(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def paused(*given: Any, **named: Any) -> Any:
            await self._pause(0.2)
            answer = await call(*given, **named)
            await self._pause(0.1)
            return answer

        return paused

    async def _pause(self, share: float) -> None:
        if self._is_on and self._random.random() < share:
            await asyncio.sleep(self._random.random() * LONGEST)
