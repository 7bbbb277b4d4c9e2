"""The interface of a transaction, through which tables execute named statements synchronously.

The statements are read from the `.sql` files in `sql/`, which contain one text for both engines, with the few
differences marked.

    -- name                 a heading; the statement follows, with `:name` parameters
    -- name @postgres       a second text of the same statement, if one text cannot serve both engines
    -- part name            a text that later statements of the file share, included by `{part name}`

In a text, these tokens are replaced for each engine:

| token                | SQLite                                  | PostgreSQL                     |
|----------------------|-----------------------------------------|--------------------------------|
| `IN {ints :ids}`     | `IN (SELECT value FROM json_each(:ids))`| `= ANY (CAST(:ids AS bigint[]))` |
| `IN {texts :names}`  | the same                                | `= ANY (CAST(:names AS text[]))` |
| `{each :names}`      | a table `asked` with a column `value`   | the same                       |
| `{greatest}(a, b)`   | `max(a, b)`                             | `greatest(a, b)`               |
| `{least}(a, b)`      | `min(a, b)`                             | `least(a, b)`                  |
| `{index some_index}` | `INDEXED BY some_index`                 | nothing                        |
| `{cross}`            | `CROSS JOIN`, which keeps the order     | `JOIN`                         |
| `{release}`          | this release and its newest step, text  | the same                       |

Integers always have 64 bits. Booleans are the integers 0 and 1, and statements compare them (`broadcast =
1`). A parameter whose type is not clear from the text is cast: `CAST(:since AS bigint) IS NULL`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from postroom.contracts.dispatch import Claim
from postroom.contracts.errors import StaleClaim
from postroom.contracts.limits import Spending
from postroom.stores.migrations import newest_of, shipped_migrations
from postroom.version import __version__

if TYPE_CHECKING:
    from postroom.stores.store import Transaction

Dialect = Literal["sqlite", "postgres"]
OF_A_PROJECT: Final = "mail:"
"""The prefix of the key of a change that is ordered by project. Other changes are ordered by thread, or not
at all.
"""
Row = Sequence[Any]
"""The columns of a row, in the order of the statement: int, float, str, bytes or None."""
Values = Mapping[str, Any]
"""Values, keyed by parameter name: int, bool (stored as 0 or 1), float, str, bytes, None, list of int or str.
"""
Look = tuple[str, Values]
"""A statement that does not write, with its values."""
Found = Mapping[tuple[Any, ...], list[Row]]
"""The rows that queries returned, keyed by the statement and its values in order."""


class SqlTransaction(Protocol):
    """A database transaction, which executes SQL statements by their names (`<file>.<heading>`).

    On PostgreSQL, `run` and `run_many` do not wait for the result. If a statement of `run` or `run_many`
    fails, the transaction is rolled back later.

    Every method raises StoreError if the engine fails; the transaction is then unusable.
    """

    known: dict[tuple[Any, ...], list[Row]]
    """The rows that queries returned since the last write or lock, keyed by statement and values."""

    spent: dict[str, Spending]
    """The spending of scopes that a change has read under the lock of the limits.

    Each write is added. On PostgreSQL, the changes of a group share this dictionary, because they hold that
    lock until they are committed.

    No other change can modify the spending in the meantime.
    """

    instant: int | None
    """The time of the change, or None before the time is read.

    A change that is made again with the same answers keeps its time, because a different time would require
    new queries.
    """

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of the database."""
        ...

    def one(self, statement: str, values: Values = ...) -> Row | None:
        """Return the first row of a query or of a write with RETURNING, or None if there are no rows."""
        ...

    def all(self, statement: str, values: Values = ...) -> list[Row]:
        """Return all rows of a query."""
        ...

    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        """Return the rows of each query; on PostgreSQL, all queries share one round trip."""
        ...

    def run(self, statement: str, values: Values = ...) -> object:
        """Execute a statement that writes, without waiting for the result."""
        ...

    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        """Execute a statement once for each set of values, without waiting for the results."""
        ...

    def changed(self, statement: str, values: Values = ...) -> int:
        """Execute a statement that writes, and return the number of changed rows."""
        ...

    def lock(self, *names: str) -> None:
        """Lock names until the transaction ends.

        A transaction must lock all of its names in one call, before it reads. On SQLite, the call has no
        effect, because only one transaction writes at a time.
        """
        ...

    def wait_for_locks(self) -> None:
        """Wait until the requested locks are held."""
        ...


class Tables:
    """Base class of the objects that read and write the tables of one area within a transaction."""

    def __init__(self, tx: "Transaction") -> None:
        self._sql = tx.sql
        self._now = tx.now
        self._tell = tx.tell
        self._new_id = tx.new_id

    def _asked(self, looks: Iterable[Look]) -> Found:
        """Return the rows of the queries `looks`, as `asked` does.

        Lists among the values must be passed as tuples.
        """
        return asked(self._sql, looks)


def asked(sql: SqlTransaction, looks: Iterable[Look]) -> Found:
    """Return the rows of the queries `looks`; rows are cached until the transaction writes or locks."""
    cache, answers = sql.known, dict[tuple[Any, ...], list[Row]]()
    new, new_looks = list[tuple[Any, ...]](), list[Look]()
    for look in looks:
        key = look[0], *look[1].values()
        if key in cache:
            answers[key] = cache[key]
        elif key not in new:
            new.append(key)
            new_looks.append(look)
    for key, rows in zip(new, sql.ask(*new_looks) if new else (), strict=True):
        cache[key] = answers[key] = rows
    return answers


def refuse_stale(sql: SqlTransaction, claim: Claim | None) -> None:
    """Check that an execution still has its claim, and lock the claim until the transaction ends.

    Call the function after threads are locked and before projects are locked. If `claim` is None, the
    function does nothing.

    Raises:
        StaleClaim: Another process may execute the run, or the run has ended; nothing was written.
    """
    if claim is not None and not sql.changed(
        "dispatches.keep_claim", {"dispatch_id": claim.dispatch_id, "token": claim.token}
    ):
        raise StaleClaim(
            f"this worker no longer has the claim on dispatch {claim.dispatch_id!r}", value=claim.dispatch_id
        )


_HEADING: Final = re.compile(r"^-- (part )?([a-z_]+)(?: @(sqlite|postgres))?$", re.MULTILINE)
_PART: Final = re.compile(r"\{part (\w+)\}")
_TOKEN: Final = re.compile(r"(?:IN )?\{(ints|texts|each|index|cross|greatest|least|release)(?: :?(\w+))?\}")
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_COMMENT: Final = re.compile(r"^--.*\n?", re.MULTILINE)
_ELEMENT: Final = {"ints": "bigint", "texts": "text", "each": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """An SQL statement in the form that its engine needs."""

    name: str
    """`<file>.<heading>`."""
    text: str
    """The text, with `:name` parameters for SQLite, or `$1` and so on for PostgreSQL."""
    parameters: tuple[str, ...]
    """The names of the parameters, in the order of their first use."""
    lists: frozenset[str]
    """The parameters whose values are lists."""
    text_of_one: str = ""
    """The text for lists with one entry, with which SQLite needs no table of JSON values."""


@cache
def statements(dialect: Dialect) -> dict[str, Statement]:
    """Return all SQL statements of a dialect, keyed by `<file>.<heading>`."""
    texts = {}
    for file in sorted(
        resources.files("postroom.stores").joinpath("sql").iterdir(), key=lambda one: one.name
    ):
        if file.name.endswith(".sql"):
            area = file.name.removesuffix(".sql")
            for heading, text in _texts(file.read_text(encoding="utf-8"), dialect).items():
                texts[f"{area}.{heading}"] = _statement(f"{area}.{heading}", text, dialect)
    return texts


def second_texts() -> list[str]:
    """Return the names of the SQL statements that have a separate text for one dialect."""
    return [
        f"{file.name.removesuffix('.sql')}.{heading}"
        for file in resources.files("postroom.stores").joinpath("sql").iterdir()
        if file.name.endswith(".sql")
        for _, heading, dialect in _HEADING.findall(file.read_text(encoding="utf-8"))
        if dialect
    ]


def _texts(source: str, dialect: Dialect) -> dict[str, str]:
    pieces = _HEADING.split(source)[1:]
    texts, parts = dict[str, str](), dict[str, str]()
    for part, heading, only_for, body in zip(*(pieces[place::4] for place in range(4)), strict=True):
        if not only_for or only_for == dialect:
            text = _PART.sub(lambda match: parts[match[1]], _COMMENT.sub("", body).strip().rstrip(";"))
            (parts if part else texts)[heading] = text
    return texts


def _statement(name: str, text: str, dialect: Dialect) -> Statement:
    lists = frozenset(match[2] for match in _TOKEN.finditer(text) if match[1] in _ELEMENT)
    text_of_one = _TOKEN.sub(lambda match: _of_one(match, dialect), text)
    text = _TOKEN.sub(lambda match: _replace_parameter(match, dialect), text)
    parameters = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    if dialect == "postgres":
        places = {parameter: place for place, parameter in enumerate(parameters, start=1)}
        text = text_of_one = _PARAMETER.sub(lambda match: f"${places[match[1]]}", text)
    return Statement(name=name, text=text, parameters=parameters, lists=lists, text_of_one=text_of_one)


def _of_one(match: re.Match[str], dialect: Dialect) -> str:
    if match[1] not in _ELEMENT or dialect == "postgres":
        return _replace_parameter(match, dialect)
    return f"(SELECT :{match[2]} AS value) AS asked" if match[1] == "each" else f"IN (:{match[2]})"


def _replace_parameter(match: re.Match[str], dialect: Dialect) -> str:
    token, named = match[1], match[2]
    if match[1] == "each":
        on_postgres = f"unnest(CAST(:{named} AS text[])) AS asked (value)"
        return f"json_each(:{named}) AS asked" if dialect == "sqlite" else on_postgres
    if token in _ELEMENT:
        if dialect == "sqlite":
            return f"IN (SELECT value FROM json_each(:{named}))"  # noqa: S608 - a parameter's name
        return f"= ANY (CAST(:{named} AS {_ELEMENT[token]}[]))"
    if match[0] == "{release}":
        return f"'{__version__}-{newest_of(shipped_migrations(dialect))}'"
    on_sqlite = {"greatest": "max", "least": "min", "index": f"INDEXED BY {named}", "cross": "CROSS JOIN"}
    if dialect == "sqlite":
        return on_sqlite[token]
    return {"greatest": "greatest", "least": "least", "index": "", "cross": "JOIN"}[token]
