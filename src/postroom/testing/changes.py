"""A database engine for tests that detects changes which break the rules for changes.

A change must be quick, must read and write only through its transaction, and must have the same result when
it is repeated. On SQLite, this engine runs every change twice, and rolls the first run back. A change is
refused if it uses randomness, files, sockets, a second database or an ended transaction, or if it waits or is
slow.
"""

import gc
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from typing_extensions import override

from postroom.contracts.clock import Clock
from postroom.contracts.errors import PostroomError
from postroom.stores.engine import Engine
from postroom.stores.outline import Outline
from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction, Values

T = TypeVar("T")

MAX_SECONDS: Final = 5.0
"""Maximum CPU time of a change, in seconds. No change of postroom takes that long on any machine."""
_HARMLESS: Final = frozenset({"getpid", "fspath"})
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]+")
_NONE: Final[Values] = {}


class _Collection(threading.local):
    is_running = False

    def __call__(self, phase: str, _: object) -> None:
        self.is_running = phase == "start"


_collection: Final = _Collection()
gc.callbacks.append(_collection)


class ChangeBreaksRules(AssertionError):
    """Raised for a change that breaks a rule; the text names the rule."""


class CheckingEngine(Engine):
    """A database engine that runs each change twice and records calls that a change must not make."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._clock = _HeldClock(engine.clock)

    @property
    @override
    def identity(self) -> str:
        return self.engine.identity

    @property
    @override
    def clock(self) -> Clock:
        return self._clock

    @property
    @override
    def release(self) -> str:
        return self.engine.release

    @property
    @override
    def checks_pages(self) -> bool:
        return self.engine.checks_pages

    @property
    @override
    def grouping(self) -> tuple[int, int]:
        return self.engine.grouping

    @override
    async def read(self, look: Callable[[SqlTransaction], T]) -> T:
        return await self.engine.read(lambda sql: _run_observed(look, sql))

    @override
    async def write(
        self,
        change: Callable[[SqlTransaction], T],
        *,
        key: str = "",
        committed: Callable[[], None] | None = None,
    ) -> T:
        def twice(sql: SqlTransaction) -> T:
            with self._clock.held():
                if sql.dialect == "postgres":
                    # PostgreSQL does not roll back sequences, so ids would be different in the second run
                    return _run_observed(change, sql)
                sql.run("store.rehearse")
                try:
                    first: object = _run_observed(change, sql)
                except (PostroomError, ValueError, LookupError) as error:
                    first = error
                sql.run("store.forget_rehearsal")
                sql.run("store.end_rehearsal")
                try:
                    again = _run_observed(change, sql)
                except (PostroomError, ValueError, LookupError) as error:
                    _refuse_other(first, error)
                    raise
                _refuse_other(first, again)
                return again

        return await self.engine.write(twice, key=key, committed=committed)

    @override
    async def settle(self) -> None:
        await self.engine.settle()

    @override
    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        await self.engine.back_up(target, is_read_back=is_read_back)

    @override
    async def check(self) -> list[str]:
        return await self.engine.check()

    @override
    async def indexes_that_lack_rows(self) -> list[str]:
        return await self.engine.indexes_that_lack_rows()

    @override
    async def write_again(self, indexes: Sequence[str]) -> None:
        await self.engine.write_again(indexes)

    @override
    async def outline(self) -> Outline:
        return await self.engine.outline()

    @override
    def take_room(self, sql: SqlTransaction, size: int) -> None:
        self.engine.take_room(sql.sql if isinstance(sql, _WatchedTransaction) else sql, size)

    @override
    def refuse_without_rights(self, sql: SqlTransaction) -> None:
        self.engine.refuse_without_rights(sql.sql if isinstance(sql, _WatchedTransaction) else sql)

    @override
    def share(self, topics: Collection[str]) -> None:
        self.engine.share(topics)

    @override
    def close(self) -> None:
        self.engine.close()


class _HeldClock:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of_thread = threading.local()

    def now(self) -> int:
        held: int | None = getattr(self._of_thread, "instant", None)
        return self._clock.now() if held is None else held

    @contextmanager
    def held(self) -> Iterator[None]:
        self._of_thread.instant = self._clock.now()
        try:
            yield
        finally:
            self._of_thread.instant = None


def _refuse_other(first: object, again: object) -> None:
    if _stable_repr(first) != _stable_repr(again):
        raise ChangeBreaksRules(
            f"a repeated change gave another result:\n{_stable_repr(first)}\n{_stable_repr(again)}"
        )


def _stable_repr(result: object) -> str:
    return _ADDRESS.sub("#", repr(result))


def _run_observed(run: Callable[[SqlTransaction], T], sql: SqlTransaction) -> T:
    transaction = _WatchedTransaction(sql)
    began = time.thread_time()
    try:
        with transaction.watched():
            done = run(transaction)
    finally:
        transaction.has_ended = True
    if transaction.broken:
        raise ChangeBreaksRules(f"a change must not call {', '.join(sorted(transaction.broken))}")
    if time.thread_time() - began > MAX_SECONDS:
        raise ChangeBreaksRules(f"a change took more than {MAX_SECONDS} seconds")
    return done


class _WatchedTransaction(SqlTransaction):
    def __init__(self, sql: SqlTransaction) -> None:
        self.sql = sql
        self.known = sql.known
        self.spent = {}
        self._is_within = False
        self.has_ended = False
        self.broken: set[str] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._check_call)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _check_call(self, frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or self._is_within or _collection.is_running:
            return
        if name := _forbidden(function):
            above: FrameType | None = frame
            while above is not None:
                if above.f_code.co_filename.startswith("<frozen importlib"):
                    return
                above = above.f_back
            self.broken.add(name)

    @contextmanager
    def _within(self) -> Iterator[SqlTransaction]:
        if self.has_ended:
            raise ChangeBreaksRules("a statement ran in a transaction that had ended")
        self._is_within = True
        try:
            yield self.sql
        finally:
            self._is_within = False

    @property
    def instant(self) -> int | None:
        return self.sql.instant

    @instant.setter
    def instant(self, instant: int | None) -> None:
        self.sql.instant = instant

    @property
    @override
    def dialect(self) -> Dialect:
        return self.sql.dialect

    @override
    def one(self, statement: str, values: Values = _NONE) -> Row | None:
        with self._within() as sql:
            return sql.one(statement, values)

    @override
    def all(self, statement: str, values: Values = _NONE) -> list[Row]:
        with self._within() as sql:
            return sql.all(statement, values)

    @override
    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        with self._within() as sql:
            return sql.ask(*looks)

    @override
    def run(self, statement: str, values: Values = _NONE) -> None:
        with self._within() as sql:
            sql.run(statement, values)

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        with self._within() as sql:
            sql.run_many(statement, rows)

    @override
    def changed(self, statement: str, values: Values = _NONE) -> int:
        with self._within() as sql:
            return sql.changed(statement, values)

    @override
    def lock(self, *names: str) -> None:
        with self._within() as sql:
            sql.lock(*names)

    @override
    def wait_for_locks(self) -> None:
        with self._within() as sql:
            sql.wait_for_locks()


_OS: Final = os.stat.__module__
_WAITING: Final = (type(threading.Lock()), socket.socket.__mro__[1])


_BLOCKING: Final = frozenset(
    {"acquire", "connect", "connect_ex", "recv", "recv_into", "send", "sendall", "accept"}
)
_CALLS: Final = frozenset(
    {
        ("time", "sleep"),
        ("_io", "open"),
        ("io", "open"),
        (select.__name__, "select"),
        ("_thread", "start_new_thread"),
        ("_thread", "start_joinable_thread"),  # since Python 3.13
    }
)


def _forbidden(function: Any) -> str | None:
    name: str = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, _WAITING):
        return f"{type(owner).__name__}.{name}" if name in _BLOCKING else None
    if type(owner).__module__ == "sqlite3" or (module == "_sqlite3" and name == "connect"):
        return f"sqlite3.{name}"
    if (module, name) in _CALLS or (module == _OS and name not in _HARMLESS):
        return f"{module}.{name}"
    return None
