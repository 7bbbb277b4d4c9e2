"""Reads the `.sql` files of `sql/`: one text for both engines, with their few differences.

    -- name                 a heading; the statement follows, with `:name` parameters
    -- name @postgres       a second text of the same statement, if one text cannot serve both engines
    -- part name            a text that later statements of the file share, included by `{part name}`

Within a text, these tokens are replaced for each engine:

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

Integers are always 64 bits wide; truth values are the integers 0 and 1 and are compared (`broadcast = 1`). A
parameter whose type is not clear from the text is cast: `CAST(:since AS bigint) IS NULL`.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from postroom.stores.migrations import newest_of, shipped_migrations
from postroom.stores.sql_transaction import Dialect
from postroom.version import __version__

_HEADING: Final = re.compile(r"^-- (part )?([a-z_]+)(?: @(sqlite|postgres))?$", re.MULTILINE)
_PART: Final = re.compile(r"\{part (\w+)\}")
_TOKEN: Final = re.compile(r"(?:IN )?\{(ints|texts|each|index|cross|greatest|least|release)(?: :?(\w+))?\}")
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_COMMENT: Final = re.compile(r"^--.*\n?", re.MULTILINE)
_ELEMENT: Final = {"ints": "bigint", "texts": "text", "each": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement in the form for its engine."""

    name: str
    """`<file>.<heading>`."""
    text: str
    """With `:name` parameters for SQLite, `$1` and so on for PostgreSQL."""
    parameters: tuple[str, ...]
    """The names of the parameters, in the order of their first use in the text."""
    lists: frozenset[str]
    """Parameters whose values are lists."""
    text_of_one: str = ""
    """The text for lists of one entry each: on SQLite it uses the entry without a table of JSON values."""


@cache
def statements(dialect: Dialect) -> dict[str, Statement]:
    """Return every statement by `<file>.<heading>`, in the form for the engine."""
    found = {}
    for file in sorted(
        resources.files("postroom.stores").joinpath("sql").iterdir(), key=lambda one: one.name
    ):
        if file.name.endswith(".sql"):
            area = file.name.removesuffix(".sql")
            for heading, text in _texts(file.read_text(encoding="utf-8"), dialect).items():
                found[f"{area}.{heading}"] = _statement(f"{area}.{heading}", text, dialect)
    return found


def second_texts() -> list[str]:
    """Return the names of the statements with a second text, whose number should stay small."""
    return [
        f"{file.name.removesuffix('.sql')}.{heading}"
        for file in resources.files("postroom.stores").joinpath("sql").iterdir()
        if file.name.endswith(".sql")
        for _, heading, dialect in _HEADING.findall(file.read_text(encoding="utf-8"))
        if dialect
    ]


def _texts(source: str, dialect: Dialect) -> dict[str, str]:
    pieces = _HEADING.split(source)[1:]
    found, parts = dict[str, str](), dict[str, str]()
    for part, heading, only_for, body in zip(*(pieces[place::4] for place in range(4)), strict=True):
        if not only_for or only_for == dialect:
            text = _PART.sub(lambda match: parts[match[1]], _COMMENT.sub("", body).strip().rstrip(";"))
            (parts if part else found)[heading] = text
    return found


def _statement(name: str, text: str, dialect: Dialect) -> Statement:
    lists = frozenset(match[2] for match in _TOKEN.finditer(text) if match[1] in _ELEMENT)
    text_of_one = _TOKEN.sub(lambda match: _of_one(match, dialect), text)
    text = _TOKEN.sub(lambda match: _replaced(match, dialect), text)
    parameters = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    if dialect == "postgres":
        places = {parameter: place for place, parameter in enumerate(parameters, start=1)}
        text = text_of_one = _PARAMETER.sub(lambda match: f"${places[match[1]]}", text)
    return Statement(name=name, text=text, parameters=parameters, lists=lists, text_of_one=text_of_one)


def _of_one(match: re.Match[str], dialect: Dialect) -> str:
    if match[1] not in _ELEMENT or dialect == "postgres":
        return _replaced(match, dialect)
    return f"(SELECT :{match[2]} AS value) AS asked" if match[1] == "each" else f"IN (:{match[2]})"


def _replaced(match: re.Match[str], dialect: Dialect) -> str:
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
