"""The one module that touches the driver: a typed connection, and its failures as the house's errors.

The driver is imported when a store is opened, so that the rest of the house does without it.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from postroom.contracts.errors import (
    CommitUnknown,
    ConfigError,
    InvalidRecord,
    MissingExtra,
    PostroomError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

Row = Sequence[Any]

CONNECT_WITHIN = timedelta(seconds=10)
ANSWER_WITHIN = timedelta(seconds=30)
"""After which a server is taken for gone; it gives up a statement itself shortly before."""
_END_WITHIN = timedelta(seconds=5)

SESSION = {
    "application_name": "postroom",
    "jit": "off",
    "statement_timeout": "25s",
    # A process that stands still in the middle of a transaction keeps others from its threads no longer.
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "2s",
    # Every statement finds few rows by an index. What the planner guesses of tables that were just made, or
    # just emptied, would choose otherwise, and a choice made then is kept.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
_CACHED_STATEMENTS = 512
HELD_UP = {"held_up": True}
"""In the details of a failure that concerns these rows alone; the server is well."""

_LOST = ("08", "57P01", "57P02", "57P03", "57P05")
_UNABLE = ("53", "57014", "25P03")
_HELD_UP = "55P03"
_MISTAKEN = ("28", "3D000")
_UNFIT = ("22", "23502", "23514")
_CLASHING = ("23503", "23505")
_CONTENDED = ("40001", "40P01")
_KINDS: tuple[tuple[tuple[str, ...], type[StoreError], str], ...] = (
    (("53100",), StoreFull, "the disk is full"),
    (("25006", "42501"), StoreReadOnly, "the database cannot be written"),
    (("XX001", "XX002"), StoreCorrupt, "the database does not read back"),
    (_UNABLE, StoreUnavailable, "PostgreSQL did not answer"),
)


class Clash(Exception):
    """A row stands against a rule of the schema: `rule` is its name. Nothing was written."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule = rule


class Contended(Exception):
    """Two transactions waited for each other and this one gave way; it may simply be done again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What another session said on a channel."""

    word: str
    own: bool
    """Whether this very connection said it."""


class Connection:
    """One session of the database."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._pid: int = raw.get_server_pid()

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return bool(self._raw.is_closed())

    async def rows(self, statement: str, *values: object, writes: bool = False) -> list[Row]:
        """Run a statement and return its rows; `writes` says that it commits what it does.

        Raises:
            Clash, Contended: as they say.
            StoreError: as the text says; CommitUnknown when a statement that writes was not answered.
            InvalidRecord: the database cannot hold a value.
        """
        with translated(sent=writes):
            found: list[Row] = await self._raw.fetch(statement, *values)
            return found

    async def run(self, script: str, *, commits: bool = False) -> None:
        """Run statements without values; `commits` says that the last of them makes a change last."""
        with translated(sent=commits):
            await self._raw.execute(script)

    async def listen(self, channel: str, heard: Callable[[Notice], None], ended: Callable[[], None]) -> None:
        """Hear what is said on a channel from now on; `ended` is called when the connection is."""

        def notified(_raw: Any, pid: int, _channel: str, word: str) -> None:
            heard(Notice(word=word, own=pid == self._pid))

        self._raw.add_termination_listener(lambda _raw: ended())
        with translated():
            await self._raw.add_listener(channel, notified)

    def cut(self) -> None:
        """End it at once, whatever it is doing."""
        self._raw.terminate()

    async def end(self) -> None:
        """End it in good order, what it is still doing included; at once when that takes too long."""
        try:
            with translated():
                await self._raw.close(timeout=_END_WITHIN.total_seconds())
        except (PostroomError, Clash, Contended):
            self.cut()


def driver() -> Any:
    """Return the driver's module.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return import_module("asyncpg")
    except ImportError as error:
        raise MissingExtra(
            "PostgreSQL needs the driver asyncpg, which is not installed",
            value="asyncpg",
            remedy="pip install 'postroom[postgres]'",
        ) from error


async def connect(
    dsn: str, schema: str, *, answer_within: timedelta | None = ANSWER_WITHIN, **session: str
) -> Connection:
    """Open a session whose unqualified names are those of one schema; `session` holds further settings of it.

    Raises:
        ConfigError: the server refuses the user, or has no such database.
        StoreUnavailable: it does not answer.
    """
    opening = driver().connect(
        dsn,
        timeout=CONNECT_WITHIN.total_seconds(),
        command_timeout=answer_within and answer_within.total_seconds(),
        statement_cache_size=_CACHED_STATEMENTS,
        max_cached_statement_lifetime=0,
        server_settings={**SESSION, "search_path": quoted(schema), **session},
    )
    with translated():
        try:
            # As a task of its own: when the driver connects it looks for a password file and certificates, a
            # few calls to the file system that are no work of ours.
            async with asyncio.TaskGroup() as group:
                task = group.create_task(opening)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed
    return Connection(task.result())


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def translated(*, sent: bool = False) -> Iterator[None]:
    """Turn the driver's failures into the house's; with `sent`, a lost answer leaves the outcome open."""
    asyncpg = driver()
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _refusal(error, sent=sent) from error
    except (OSError, EOFError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        # OSError holds ConnectionError and, since Python 3.11, TimeoutError.
        raise _loss(error, sent=sent) from error


def _refusal(error: Any, *, sent: bool) -> Exception:
    state: str = error.sqlstate or ""
    text = getattr(error, "message", None) or str(error)  # without the details, which show whole rows
    if state.startswith(_LOST):
        return _loss(error, sent=sent)
    if state in _CLASHING:
        return Clash(str(error.constraint_name or ""), text)
    if state == _HELD_UP:
        return StoreUnavailable(f"another transaction keeps the rows for too long: {text}", details=HELD_UP)
    if state in _CONTENDED:
        return Contended(text)
    if state.startswith(_UNFIT):
        return InvalidRecord(f"PostgreSQL cannot hold a value: {text}")
    if state.startswith(_MISTAKEN):
        return ConfigError(f"PostgreSQL refuses the connection: {text}")
    for states, kind, saying in _KINDS:
        if state.startswith(states):
            return kind(f"{saying}: {text}")
    return StoreError(f"PostgreSQL refused: {text}", value=state)


def _loss(error: BaseException, *, sent: bool) -> PostroomError:
    text = str(error) or type(error).__name__
    if sent:
        return CommitUnknown(f"the connection to PostgreSQL broke before it answered: {text}")
    return StoreUnavailable(f"PostgreSQL cannot be reached: {text}")
