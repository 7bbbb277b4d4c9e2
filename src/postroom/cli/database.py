"""`postroom database copy` copies the whole store from one database engine to the other."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from postroom.app import places
from postroom.cli import show
from postroom.cli.help_text import command_group
from postroom.cli.options import AsJson, DataDir
from postroom.contracts.addresses import is_postgres_address, refuse_malformed_address
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import InvalidArgument

app = command_group(
    "Copy all data to another database.", "database copy --to postgresql://postroom@db.example/mail"
)

_SQLITE: Final = "sqlite:"


@app.callback()
def database() -> None:
    """Copy all data to another database."""


@app.command()
def copy(
    to: Annotated[
        str, typer.Option(metavar="DATABASE", help="The target database: postgresql://... or sqlite:PATH.")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="DATABASE",
            help="The source database, in the same form as --to.",
            show_default="the configured database",
        ),
    ] = "",
    schema: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The schema of the PostgreSQL database.",
            show_default="the configured schema",
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check both databases, but write nothing.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Copy all data to an empty database of the other kind, and compare each row.

    First stop all servers that use either database. Ids, tokens and cursors stay the same. Repeat the
    command to continue an interrupted copy; no server opens the target before the copy is complete. The
    source does not change.
    """
    from postroom.app.config import load_settings
    from postroom.executors.processes.process_runner import is_gone
    from postroom.stores.database_copy import checked, copied

    settings = load_settings(overrides={"data_dir": data_dir})
    chosen = schema or settings.database_schema
    usual = settings.database_url or f"{_SQLITE}{settings.database}"
    sides = [_parse_location(value, chosen) for value in (source or usual, to)]
    with show.progress(as_json=as_json):
        do = checked if dry_run else copied
        fields = do(*sides, now=SystemClock().now(), is_gone=is_gone)
    show.answer(fields, as_json=as_json, text=lambda: _print_copy(fields))


def _parse_location(text: str, schema: str) -> "Path | tuple[str, str]":
    if is_postgres_address(text):
        try:
            refuse_malformed_address(text)
        except ValueError as error:
            raise InvalidArgument("the PostgreSQL URL is malformed", remedy=str(error)) from error
        return text, schema
    path = places.absolute(text.removeprefix(_SQLITE), places.environment())
    if not text.startswith(_SQLITE) or text == _SQLITE or not path.name:
        raise InvalidArgument(
            "a database must be written as postgresql://... or sqlite:PATH",
            remedy="for example --to postgresql://postroom@db.example/mail",
        )
    return path


def _print_copy(found: dict[str, Any]) -> str:
    rows, names = found["rows"], (show.line(found["from"]), show.line(found["to"]))
    counted = f"{sum(rows.values())} rows of {len(rows)} tables"
    if not found["done"]:
        return f"{counted} would be copied from {names[0]} to {names[1]}; {found['target']}"
    return (
        f"{counted} were copied from {names[0]} to {names[1]}, and each row was compared\nnext: set "
        "the new database in the settings and start the server; keep the old database until you are "
        "sure, but start no server on it: changes to one database do not reach the other"
    )
