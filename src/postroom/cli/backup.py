"""`postroom backup` and `postroom restore`."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from postroom.app import places
from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.options import AsJson, DataDir
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import ServerUnavailable

app = typer.Typer(rich_markup_mode=None)

LONGEST_BACKUP: Final = timedelta(hours=1)


@app.command()
def backup(
    target: Annotated[Path | None, typer.Argument(metavar="[TARGET]", help="The file to write.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a checked copy of the database. With or without a running server."""
    chosen = None if target is None else places.absolute(str(target), places.environment())
    with show.progress() as tell:
        tell("writing the backup")
        try:
            found = _through_server(chosen, data_dir)
        except ServerUnavailable:
            if places.environment().get("POSTROOM_URL"):  # somebody else's machine: there is no database here
                raise
            from postroom.cli.offline import back_up_offline

            found = back_up_offline(chosen, data_dir=data_dir, now=SystemClock().now())
    show.answer(found, as_json=as_json, text=lambda: f"the backup is {show.line(found['path'])}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")],
    to: Annotated[Path | None, typer.Option(metavar="PATH", help="Restore it there instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a database; it is kept beside.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the database's place. It is checked first; no server may run."""
    from postroom.app.config import load_settings
    from postroom.cli.restoring import RestoreOptions, restore
    from postroom.stores.postgres.errors import no_backup

    settings = load_settings(overrides={"data_dir": data_dir, "database": to})
    if settings.database_url:
        raise no_backup()
    environment = places.environment()
    wish = RestoreOptions(
        source=places.absolute(str(file), environment),
        database=settings.database,
        force=force,
        dry_run=dry_run,
    )
    with show.progress() as tell:
        done = restore(wish, now=SystemClock().now(), progress=tell)
    document = done.as_dict()
    show.answer(document, as_json=as_json, text=lambda: _told(document))


def _through_server(target: Path | None, data_dir: Path | None) -> dict[str, object]:
    server = Server.find(data_dir=data_dir, timeout=LONGEST_BACKUP)
    return server.admin("POST", "/admin/backup", {"target": None if target is None else str(target)})


def _told(document: dict[str, object]) -> str:
    source, database, former = (document[key] for key in ("source", "database", "former"))
    was, kept = ("was restored", "is kept") if document["done"] else ("can be restored", "would be kept")
    text = f"{show.line(source)} (schema {document['schema']}) {was} to {show.line(database)}"
    return f"{text}\nthe database that was there {kept} as {show.line(former)}" if former else text
