"""Copies a store from one engine to the other, for `postroom database copy`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from postroom.contracts import progress
from postroom.contracts.addresses import shown_address
from postroom.contracts.errors import InvalidArgument, MissingExtra
from postroom.contracts.messages import Json
from postroom.extras import install_command
from postroom.stores.moving import Side, Table, copy, is_continued
from postroom.stores.sqlite import moving as sqlite

Place = Path | tuple[str, str]
"""A file, or the address and the schema of a PostgreSQL database."""
IsGone = Callable[[Mapping[str, Json]], bool]


class _Sides(NamedTuple):
    source: Side
    target: Side
    tables: list[Table]


def copied(source: Place, target: Place, *, now: int, is_gone: IsGone) -> dict[str, object]:
    """Copy a store to another database, and return the result as JSON data.

    `is_gone` returns whether the process that a lease describes has exited.

    Raises:
        PostroomError: As for `postroom.stores.moving.copy`, or one of the databases cannot be opened.
    """
    with _open_both(source, target, now=now, writes=True, is_gone=is_gone) as sides:
        done = copy(*sides)
        return {
            "from": sides.source.name,
            "to": sides.target.name,
            "rows": dict(done.rows),
            "went_on": done.went_on,
            "done": True,
        }


def checked(source: Place, target: Place, *, now: int, is_gone: IsGone) -> dict[str, object]:
    """Return the number of rows of each table that a copy would write; nothing is written.

    Raises:
        PostroomError: The copy would be rejected.
    """
    with _open_both(source, target, now=now, writes=False, is_gone=is_gone) as (origin, place, tables):
        goes_on = is_continued(origin, place, tables)
        rows = {}
        for done, table in enumerate(tables):
            progress.tell(f"counting {table.name}: tables", done, len(tables))
            rows[table.name] = origin.count(table)
        text = "would continue the interrupted copy" if goes_on else "the target is empty"
        return {"from": origin.name, "to": place.name, "rows": rows, "target": text, "done": False}


@contextmanager
def _open_both(source: Place, target: Place, *, now: int, writes: bool, is_gone: IsGone) -> Iterator[_Sides]:
    """Open both databases for a copy; exactly one must be a SQLite file.

    Raises:
        InvalidArgument: Both databases use the same engine.
        MissingExtra: The PostgreSQL driver is not installed.
    """
    match source, target:
        case Path() as path, (dsn, schema):
            is_target = False
        case (dsn, schema), Path() as path:
            is_target = True
        case _:
            raise InvalidArgument(
                "both databases are of the same kind",
                remedy="`postroom backup` and `postroom restore` copy SQLite; `pg_dump` copies PostgreSQL",
            )
    try:
        from postroom.stores.postgres import moving as postgres
    except ImportError as error:
        raise MissingExtra(
            "the driver psycopg for PostgreSQL is not installed",
            value="psycopg",
            remedy=install_command("postgres"),
        ) from error
    name = shown_address(dsn, schema)
    file: AbstractContextManager[Side] = sqlite.opened(path, now=now, is_target=is_target, writes=writes)
    server: AbstractContextManager[Side] = postgres.opened(
        dsn, schema=schema, name=name, is_target=not is_target, is_gone=is_gone
    )
    # Open the source first, so that nothing is created at the target if the source is rejected.
    first, second = (server, file) if is_target else (file, server)
    with first as origin, second as place:
        yield _Sides(origin, place, sqlite.shared_tables(now))
