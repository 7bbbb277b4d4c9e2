"""The only module that uses the PostgreSQL driver; a connection is one database session, for one thread.

The class is a thin layer over `psycopg.pq`, the driver's low-level wrapper of libpq. Statements are
collected, and sent together with the next query or at the end. After statements were sent, all answers up to
a sync marker are read. Each statement is prepared under its own name when it is first used, because the
driver's automatic preparation does not survive an error in a pipeline.
"""

import contextlib
import os
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any, Final

import psycopg
from psycopg import conninfo, pq

from postroom.contracts.errors import ConfigError, InvalidRecord, PostroomError, StoreUnavailable
from postroom.stores.postgres.errors import (
    ConnectionLost,
    Contended,
    Refusal,
    Silent,
    dropped,
    error_for,
    login_error,
    sessionless,
    silent,
    unreachable,
    unreadable,
)
from postroom.stores.postgres.reach import Reach
from postroom.stores.sql_transaction import Row, Statement

Bound = Sequence[bytes | None]
"""The encoded values of a statement, in order."""
_INTEGERS = (20, 21, 23, 26)
_FLOATS = (700, 701)


def encoded(value: object) -> bytes | None:
    """Return a value in PostgreSQL's text format; a list becomes an array.

    Raises:
        InvalidRecord: The text cannot be stored.
    """
    if value is None:
        return None
    if type(value) is int:
        return b"%d" % value
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidRecord("PostgreSQL cannot store a value: a text contains a NUL character")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(
                "PostgreSQL cannot store a value: a text contains an unpaired surrogate character"
            ) from error
    if isinstance(value, int):  # booleans are also encoded here, as 0 and 1
        return b"%d" % value
    if isinstance(value, float):
        return repr(value).encode()
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, Iterable):
        return b"{%s}" % b",".join(map(_element, value))
    raise TypeError(f"a database cannot store a {type(value).__name__}")


def decoder(oid: int) -> Callable[[bytes], Any]:
    """Return the function that decodes the text format of the PostgreSQL type with this OID."""
    return _DECODERS.get(oid, bytes.decode)


def array(several: Iterable[bytes | None]) -> bytes:
    """Return encoded values as an array in PostgreSQL's text format."""
    return b"{%s}" % b",".join([b"NULL" if data is None else _quote(data) for data in several])


def _element(value: object) -> bytes:
    text = encoded(value)
    if text is None:
        return b"NULL"
    return _quote(text) if isinstance(value, str) else text


def _quote(text: bytes) -> bytes:
    return b'"%s"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _number(text: bytes) -> int | float:
    """Decode a value of the type numeric."""
    return float(text) if b"." in text or b"N" in text else int(text)


def _truth(text: bytes) -> int:
    return int(text == b"t")


def _bytes(text: bytes) -> bytes:
    return bytes.fromhex(text[2:].decode())


_DECODERS: Final[dict[int, Callable[[bytes], Any]]] = {
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(_FLOATS, float),
    16: _truth,
    17: _bytes,
    1700: _number,
}


_PLACE: Final = re.compile(r"\$(\d+)")
_VALUES: Final = re.compile(r"VALUES \(((?:[^()]|\([^()]*\))*)\)")
_WHERE: Final = re.compile(r"\s+WHERE ")
_TYPES: Final = {20: "bigint", 25: "text", 1016: "bigint[]", 1009: "text[]"}
"""The types of parameters that can be combined, by their OIDs in PostgreSQL."""


@cache
def together(statement: Statement, types: tuple[int, ...]) -> Statement | None:
    """Return a statement that combines many executions of a query, or None if the query cannot be combined.

    Each parameter of the combined statement is an array with one value per execution. The last column of each
    row is the number of the execution, counted from 1.
    """
    if not types or not _TYPES.keys() >= set(types):
        return None
    # OFFSET 0 keeps the query separate, so that it is planned like the original statement.
    looked = f"SELECT * FROM ({_use_given_columns(statement, types)}) AS one OFFSET 0"  # noqa: S608 - only fixed texts
    text = f"SELECT found.*, given.place FROM {_given_table(types)} CROSS JOIN LATERAL ({looked}) AS found"  # noqa: S608
    return replace(statement, name=f"{statement.name}+", text=text)


@cache
def written_together(statement: Statement, types: tuple[int, ...]) -> Statement | None:
    """Return a statement that combines many executions of a write, or None if the write cannot be combined.

    Two executions must not change the same row, unless the statement adds to the row's values.
    """
    if not types or not _TYPES.keys() >= set(types):
        return None
    given_text = f"FROM {_given_table(types)}"
    text = _use_given_columns(statement, types)
    if text.startswith("INSERT"):
        text = _VALUES.sub(lambda match: f"SELECT {_name_columns(match[1])} {given_text}", text)
    else:
        text = _WHERE.sub(f" {given_text} WHERE ", text)
    return replace(statement, name=f"{statement.name}+", text=text)


def _name_columns(values: str) -> str:
    """Return the values of a VALUES clause with the column names that PostgreSQL would assign."""
    return ", ".join(f"{value} AS column{place}" for place, value in enumerate(values.split(","), start=1))


def _given_table(types: tuple[int, ...]) -> str:
    places = range(1, len(types) + 1)
    # lists become text, because nested arrays need equal lengths
    kinds = ["text" if _TYPES[number].endswith("[]") else _TYPES[number] for number in types]
    arrays = ", ".join(f"${place}::{kind}[]" for place, kind in zip(places, kinds, strict=True))
    names = ", ".join(f"p{place}" for place in places)
    return f"unnest({arrays}) WITH ORDINALITY AS given ({names}, place)"


def columns(several: Sequence[Bound]) -> list[bytes]:
    """Return an array of values for each parameter."""
    return [array(column) for column in zip(*several, strict=True)]


def _use_given_columns(statement: Statement, types: tuple[int, ...]) -> str:
    """Return the text of a statement with columns in place of its parameters."""
    return _PLACE.sub(lambda match: _use(int(match[1]), _TYPES[types[int(match[1]) - 1]]), statement.text)


def _use(place: int, kind: str) -> str:
    return f"CAST(given.p{place} AS {kind})" if kind.endswith("[]") else f"given.p{place}"


CONNECT_WITHIN: Final = timedelta(seconds=10)
ANSWER_WITHIN: Final = timedelta(seconds=30)
"""The time without an answer after which the database server is considered lost.

Shortly before the server counts as lost, it is asked to cancel the statement.
"""
OLDEST_SERVER: Final = 14

SESSION: Final = {
    "client_encoding": "UTF8",
    "jit": "off",
    "statement_timeout": "25s",
    # A process that stalls within a transaction can block other processes for at most this long.
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "2s",
    # Every statement finds a few rows by an index. For tables with many rows, the planner chooses the index
    # by itself. For tables that were just created or emptied, it nearly always plans to read them completely,
    # and it keeps such a plan until they are analysed again (`tests/meta/test_plans.py`).
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # For the newest 2,000 of 1,000,000 log entries, the planner would start two more processes, which takes
    # 10 to 40 ms on a busy machine. The statement itself takes 4 ms.
    "max_parallel_workers_per_gather": "0",
}
_TIMEOUTS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
# A shorter timeout in the address, in PGOPTIONS, or of the user or the database is kept. A longer timeout, or
# none, is replaced: otherwise other processes would wait for this one, and this process would consider the
# server lost before the server gives up.
_SETTINGS: Final = """
SELECT set_config(name, CASE
         WHEN name = ANY ($4::text[])
          AND CAST(current_setting(name) AS interval) > interval '0'
          AND CAST(current_setting(name) AS interval) < CAST(value AS interval)
         THEN current_setting(name) ELSE value END, $3::int = 1)
  FROM unnest($1::text[], $2::text[]) AS s (name, value)
"""
_DIAGNOSTIC: Final = pq.DiagnosticField
_ROWS: Final = pq.ExecStatus.TUPLES_OK
_DONE: Final = pq.ExecStatus.COMMAND_OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a database, and the options of a connection."""

    dsn: str = field(repr=False)  # contains a password
    schema: str
    direct_dsn: str = field(default="", repr=False)
    """The address of the database itself, if `dsn` belongs to a pooler that gives each transaction a
    different session.

    With such a pooler, nothing is stored in its sessions. Direct sessions are used to listen and to hold
    locks.
    """
    answer_within: timedelta = ANSWER_WITHIN
    connect_within: timedelta = CONNECT_WITHIN
    settings: Mapping[str, str] = field(default_factory=dict)
    """Additional settings of the session."""
    reach: Reach | None = field(default=None, repr=False)
    """The log of whether the database can be reached.

    The log is set after the process has opened the database, because only then are the settings known to be
    correct.
    """

    @property
    def session(self) -> dict[str, str]:
        """All settings of a session."""
        return {**SESSION, "search_path": quoted(self.schema), **self.settings}

    @property
    def direct(self) -> "Address":
        """The address of the database itself, without a pooler."""
        if not self.direct_dsn:
            return self
        # One of the two may be unreachable while the other is reachable.
        return replace(self, dsn=self.direct_dsn, direct_dsn="", reach=Reach() if self.reach else None)


class Answer:
    """The result of a statement, which is available after `Connection.wait`."""

    __slots__ = ("changed", "rows", "statement")

    def __init__(self, statement: str = "") -> None:
        self.statement = statement
        """The name under which the statement is prepared; empty if it is not prepared."""
        self.rows: list[Row] = []
        self.changed = 0


class _Preparing(Answer):
    """The result of preparing a statement."""


class _Described(Answer):
    """The result of describing a statement."""


class _Together(Answer):
    """The result of a statement that combines several queries."""

    __slots__ = ("answers",)

    def __init__(self, statement: str, answers: Sequence[Answer]) -> None:
        super().__init__(statement)
        self.answers = answers

    def deal_out(self) -> None:
        """Distribute the rows to the results of the queries."""
        answers = self.answers
        for row in self.rows:
            answers[row[-1] - 1].rows.append(row[:-1])


_MARK: Final = Answer()
"""Marks the end of the statements that were sent, among the expected answers."""
_UNDONE: Final = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED)
_FAILURES: Final = (psycopg.Error, OSError, ValueError)
"""Errors that the driver raises only if the connection fails."""


class Connection:
    """A database session, which one thread uses.

    Any method may raise ConnectionLost, after which the session is unusable.
    """

    def __init__(self, address: Address) -> None:
        """Connect to the database.

        Raises:
            ConfigError: The server rejects the user, does not have this database, or is too old.
            StoreUnavailable: The server does not respond.
        """
        self._address = address
        self._within = address.answer_within.total_seconds()
        self._selector = selectors.DefaultSelector()
        self._decoders: dict[str, list[Callable[[bytes], Any]]] = {}
        self._prepared: dict[str, bytes] = {}
        self._types: dict[str, tuple[int, ...]] = {}
        """The types of the parameters of statements, keyed by the statement's name."""
        self._looks: dict[tuple[bool, str], tuple[Statement, list[tuple[Bound, Answer]]]] = {}
        """Queries for the next wait, keyed by a flag and a name; the flag is False for locks, so that they
        come first.
        """
        self._writes: list[tuple[Statement, list[Bound]]] = []
        """Writes that are sent before all other statements."""
        self._expected: deque[Answer] = deque()
        self.has_written = False
        """Whether something other than a query was sent since the writer last set this to False."""
        try:
            self._pg = _connect(address)
            version = self._pg.server_version
            if version < OLDEST_SERVER * 10_000:
                raise ConfigError(
                    f"PostgreSQL {version // 10_000} is too old",
                    value=version,
                    remedy=f"use PostgreSQL {OLDEST_SERVER} or newer",
                )
            self._selector.register(self._pg.socket, selectors.EVENT_READ)
            self._pg.nonblocking = 1
            self._pg.enter_pipeline_mode()
            if not address.direct_dsn:
                self._set_up(for_transaction=False)
                # Wait for the first answer, because a pooler may accept a client and then let it wait for a
                # session.
                usual, self._within = self._within, min(self._within, address.connect_within.total_seconds())
                try:
                    self.wait()
                except Silent as error:
                    raise sessionless() from error
                self._within = usual
        except (ConnectionLost, PostroomError) as error:
            self.close()
            failure = error if isinstance(error, PostroomError) else unreachable(error)
            if address.reach is not None:
                address.reach.lost(failure)
            raise failure from (error if failure is not error else error.__cause__)
        except BaseException:
            self.close()
            raise
        if address.reach is not None:
            address.reach.found()

    @property
    def pid(self) -> int:
        """The id of the server process, as reported when the connection was made."""
        return self._pg.backend_pid

    def process(self) -> int:
        """Ask the server for the id of its process, which differs from `pid` behind a pooler."""
        answer = self.send("SELECT pg_backend_pid()")
        self.wait()
        return int(answer.rows[0][0])

    @property
    def release(self) -> str:
        """The product name and the version of the database server."""
        return f"PostgreSQL {self._pg.server_version // 10_000}.{self._pg.server_version % 10_000}"

    @property
    def fileno(self) -> int:
        """The socket of the connection, which becomes readable when a notification arrives."""
        return self._pg.socket

    def refuse_lost(self) -> None:
        """Check that the server has not closed the connection.

        Raises:
            ConnectionLost: The server has closed the connection.
        """
        while self._selector.select(0):
            self._call(self._pg.consume_input)
            if self._pg.status == pq.ConnStatus.BAD:
                raise ConnectionLost("the server closed the connection")

    def begin(self, how: str = "BEGIN") -> None:
        """Begin a transaction; the statement is sent together with the next query."""
        self.send(how)
        if self._address.direct_dsn:
            self._set_up(for_transaction=True)

    def undo(self) -> None:
        """Roll back the transaction."""
        self._looks.clear()
        self._writes.clear()
        if self._expected:
            with contextlib.suppress(PostroomError, Contended):
                self.wait()  # if this fails, the transaction is rolled back nevertheless
        self.send("ROLLBACK")
        self.wait()

    def send(self, text: str, values: Sequence[object] = ()) -> Answer:
        """Send a statement; its result is available after `wait`."""
        self._send_writes()
        return self._send_text(text, list(map(encoded, values)), Answer())

    def look(self, statement: Statement, bound: Bound, *, is_lock: bool = False) -> Answer:
        """Queue a named query with encoded values; the rows are available after `wait`.

        Queries that differ only in their values are sent as one statement. Queries for locks are executed
        before other queries.
        """
        answer = Answer(statement.name)
        self._looks.setdefault((not is_lock, statement.name), (statement, []))[1].append((bound, answer))
        return answer

    def write(self, statement: Statement, bound: Bound, after: int) -> int:
        """Queue a write with encoded values, and return its position in the queue.

        Writes that differ only in their values are sent as one statement. Writes at positions up to `after`
        are executed before the new write.
        """
        self.has_written = True
        for place in range(after + 1, len(self._writes)):
            if self._writes[place][0] is statement:
                self._writes[place][1].append(bound)
                return place
        self._writes.append((statement, [bound]))
        return len(self._writes) - 1

    @property
    def last_write(self) -> int:
        """The position of the last queued write, or -1 if there is none."""
        return len(self._writes) - 1

    def send_named(self, statement: Statement, bound: Bound) -> Answer:
        """Send a named statement with encoded values; its result is available after `wait`."""
        self._send_writes()
        return self._send_prepared(statement, bound, Answer(statement.name))

    def _send_prepared(self, statement: Statement, bound: Bound, answer: Answer) -> Answer:
        if self._address.direct_dsn:
            return self._send_text(statement.text, bound, answer)
        name = self._prepared.get(statement.name)
        self._note(statement.text)
        try:
            if name is None:
                name = self._prepared[statement.name] = statement.name.encode()
                self._pg.send_prepare(name, statement.text.encode())
                self._pg.send_describe_prepared(name)
                self._expected += _Preparing(statement.name), _Described(statement.name)
            self._pg.send_query_prepared(name, bound or None)
        except _FAILURES as error:
            raise _connection_lost_error(error) from error
        self._expected.append(answer)
        return answer

    def _send_writes(self) -> None:
        writes, self._writes = self._writes, []
        for statement, several in writes:
            types = self._types.get(statement.name) if len(several) > 1 else None
            for_all = written_together(statement, types) if types else None
            if for_all is not None:
                self._send_prepared(for_all, columns(several), Answer(for_all.name))
                continue
            for bound in several:
                self._send_prepared(statement, bound, Answer(statement.name))

    def wait(self) -> None:
        """Execute the sent and queued statements, and read their results.

        Raises:
            Contended, PostroomError: The first error of the server; later statements were not executed.
        """
        expected = self._expected
        self._send_writes()
        looks, self._looks = self._looks, {}
        for _, (statement, requested_items) in sorted(looks.items()):
            types = self._types.get(statement.name) if len(requested_items) > 1 else None
            for_all = together(statement, types) if types else None
            if for_all is not None:
                answers = _Together(for_all.name, [answer for _, answer in requested_items])
                self._send_prepared(for_all, columns([bound for bound, _ in requested_items]), answers)
                continue
            for bound, answer in requested_items:
                self._send_prepared(statement, bound, answer)
        if expected and expected[-1] is not _MARK:
            self.flush()
        refused: Refusal | None = None
        until = time.monotonic() + self._within
        while expected:
            refusal = self._read(expected.popleft(), until)
            refused = refused or refusal
        if refused is not None:
            raise error_for(refused)

    def pass_on(self) -> None:
        """Let the server start to execute the sent statements."""
        self._call(self._pg.flush)

    def flush(self) -> None:
        """Send the collected statements without waiting for their results."""
        self._call(self._pg.pipeline_sync)
        self._expected.append(_MARK)
        self._call(self._pg.flush)

    def run_script(self, script: str) -> None:
        """Execute an SQL script without values within the open transaction.

        Raises:
            PostroomError: The server rejected a statement.
        """
        self.wait()
        self._call(self._pg.exit_pipeline_mode)  # it accepts only single statements
        until = time.monotonic() + self._within
        refused: Refusal | None = None
        self._call(lambda: self._pg.send_query(script.encode()))
        while (result := self._next_result(until)) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                refused = refused or self._refusal(result)
        self._call(self._pg.enter_pipeline_mode)
        if refused is not None:
            raise error_for(refused)

    def listen(self, channel: str) -> None:
        """Start to listen for notifications on a channel."""
        self.send(f"LISTEN {quoted(channel)}")
        self.wait()

    def heard(self) -> list[tuple[str, int]]:
        """Return the notifications that have arrived: their text and the sender's process id."""
        self._call(self._pg.consume_input)
        results = []
        while (notice := self._call(self._pg.notifies)) is not None:
            results.append((notice.extra.decode(errors="replace"), notice.be_pid))
        return results

    def cut(self) -> None:
        """Abort the connection from another thread; a thread that waits for the server gets an error."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._pg.socket)) as its,
        ):
            its.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; a second call has no effect."""
        self._selector.close()
        if hasattr(self, "_pg"):
            self._pg.finish()

    def _set_up(self, *, for_transaction: bool) -> None:
        session = self._address.session
        giving_way = [name for name in _TIMEOUTS if name not in self._address.settings]
        self.send(_SETTINGS, (list(session), list(session.values()), for_transaction, giving_way))

    def _send_text(self, text: str, bound: Bound, answer: Answer) -> Answer:
        self._note(text)
        self._call(lambda: self._pg.send_query_params(text.encode(), bound or None))
        self._expected.append(answer)
        return answer

    def _note(self, text: str) -> None:
        self.has_written = self.has_written or not text.startswith("SELECT")

    def _read(self, expected: Answer, until: float) -> Refusal | None:
        result = self._next_result(until)
        if result is None or expected is _MARK:
            return None
        status = result.status
        refusal = self._refusal(result) if status == pq.ExecStatus.FATAL_ERROR else None
        self._next_result(until)  # the end of the statement
        if status == _ROWS:
            expected.rows = self._rows(expected.statement, result)
            expected.changed = len(expected.rows)
            if isinstance(expected, _Together):
                expected.deal_out()
        elif status == _DONE and isinstance(expected, _Described):
            self._types[expected.statement] = tuple(map(result.param_type, range(result.nparams)))
        elif status == _DONE:
            expected.changed = result.command_tuples or 0
        elif status in _UNDONE and isinstance(expected, _Preparing):
            self._prepared.pop(expected.statement, None)
        return refusal

    def _refusal(self, result: pq.abc.PGresult) -> Refusal:
        def unescape_nul(which: pq.DiagnosticField) -> str:
            return (result.error_field(which) or b"").decode(errors="replace")

        state = unescape_nul(_DIAGNOSTIC.SQLSTATE)
        if not state:  # an error of libpq itself: the server is gone
            raise ConnectionLost(result.error_message.decode(errors="replace").strip())
        refusal = Refusal(
            state=state,
            text=unescape_nul(_DIAGNOSTIC.MESSAGE_PRIMARY),
            rule=unescape_nul(_DIAGNOSTIC.CONSTRAINT_NAME),
            schema=quoted(self._address.schema),
            user=quoted((self._pg.user or b"").decode(errors="replace")),
        )
        if isinstance(lost := error_for(refusal), ConnectionLost):
            raise lost  # the connection is closed next, so nothing more has to be read
        return refusal

    def _rows(self, name: str, result: pq.abc.PGresult) -> list[Row]:
        width = result.nfields
        readers = self._decoders.get(name) if name else None
        if readers is None or len(readers) != width:
            readers = [decoder(result.ftype(column)) for column in range(width)]
            if name:
                self._decoders[name] = readers
        value = result.get_value
        columns = list(enumerate(readers))
        return [
            tuple([None if (text := value(row, at)) is None else read(text) for at, read in columns])
            for row in range(result.ntuples)
        ]

    def _next_result(self, until: float) -> pq.abc.PGresult | None:
        if self._pg.is_busy():
            self._wait_for_the_server(until)
        return self._pg.get_result()

    def _wait_for_the_server(self, until: float) -> None:
        while True:
            unsent = self._call(self._pg.flush)
            if not unsent and not self._pg.is_busy():
                return
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
            self._selector.modify(self._pg.socket, events)
            left = until - time.monotonic()
            ready = self._selector.select(max(left, 0))
            if not ready:
                raise Silent("the server no longer answers")
            if ready[0][1] & selectors.EVENT_READ:
                self._call(self._pg.consume_input)

    def _call(self, step: Callable[[], Any]) -> Any:
        """Call a function of the driver, and convert its errors to ConnectionLost."""
        try:
            return step()
        except _FAILURES as error:
            raise _connection_lost_error(error) from error


def _connection_lost_error(error: Exception) -> ConnectionLost:
    return ConnectionLost(str(error).strip() or type(error).__name__)


def _connect(address: Address) -> pq.abc.PGconn:
    try:
        known_values = conninfo.conninfo_to_dict(address.dsn, fallback_application_name="postroom")
        # A shorter time that is set for libpq applies. Without one, libpq reports a longer time.
        own = timedelta(seconds=conninfo.timeout_from_conninfo(known_values))
        attempts = conninfo.conninfo_attempts(known_values)
    except psycopg.ProgrammingError as error:
        raise unreadable(str(error)) from None
    except psycopg.OperationalError as error:  # the name of the host is unknown
        raise unreachable(error) from error
    failure: PostroomError = unreachable("no host is given")
    for attempt in attempts:
        try:
            return _connect_to_host(conninfo.make_conninfo("", **attempt), min(own, address.connect_within))
        except StoreUnavailable as error:
            failure = error
        except ConfigError as error:
            raise (dropped(error) if address.reach is not None else error) from None
    raise failure


def _connect_to_host(host: str, within: timedelta) -> pq.abc.PGconn:
    """Connect to one host, without holding the global interpreter lock."""
    pg = pq.PGconn.connect_start(host.encode())
    until = time.monotonic() + within.total_seconds()
    waits = {
        pq.PollingStatus.READING: selectors.EVENT_READ,
        pq.PollingStatus.WRITING: selectors.EVENT_WRITE,
    }
    while pg.status != pq.ConnStatus.BAD and (state := pg.connect_poll()) != pq.PollingStatus.FAILED:
        if state == pq.PollingStatus.OK:
            return pg
        with selectors.DefaultSelector() as selector:  # the socket may change each time
            selector.register(pg.socket, waits[pq.PollingStatus(state)])
            if not selector.select(max(until - time.monotonic(), 0)):
                place = f"{pg.host.decode()}:{pg.port.decode()}"
                pg.finish()
                if state == pq.PollingStatus.READING:
                    raise silent(place, within)
                raise unreachable(f"no answer from {place} in time")
    text = pg.get_error_message().strip()
    pg.finish()
    raise login_error(text)


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
