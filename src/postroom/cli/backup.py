"""`postroom backup` and `postroom restore`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from postroom.app import places
from postroom.cli import show
from postroom.cli.call import call
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import InvalidPath, ServerUnavailable

app = typer.Typer(rich_markup_mode=None)


class _MakesOne(TyperGroup):
    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named else ["create", *args])


backups = typer.Typer(
    cls=_MakesOne,
    help="Create, list and remove backups of the database. Without a subcommand: create.",
    rich_markup_mode=None,
    epilog=examples(
        "backup create", "backup list", "backup prune --keep 7 --dry-run", "backup create ~/monday.db"
    ),
)


@backups.command()
def create(
    target: Annotated[
        Path | None, typer.Argument(metavar="TARGET", help="Write the backup to this new file.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a verified backup of the database, with or without a running server.

    Without TARGET, the backup goes to the backups folder.
    """
    if target is not None and len(target.parts) == 1 and not target.suffix:  # probably a misspelt command
        raise InvalidPath(
            f"`postroom backup` has no subcommand {target}",
            value=str(target),
            remedy=f"to write a backup to a file with this name, use its full path or add a suffix: "
            f"{target}.db",
        )
    chosen = None if target is None else places.absolute(str(target), places.environment())
    with show.progress(as_json=as_json):
        try:
            place = None if chosen is None else str(chosen)
            answer = call("write_backup", data_dir=data_dir, target=place)
        except ServerUnavailable:
            # the server is on another machine, so this machine has no database
            if places.environment().get("POSTROOM_URL"):
                raise
            from postroom.app.offline import back_up_offline

            answer = back_up_offline(chosen, data_dir=data_dir, now=SystemClock().now())
    show.answer(
        answer,
        as_json=as_json,
        text=lambda: f"Wrote {show.line(answer['path'])} ({answer['bytes']:,} bytes).",
    )


@backups.command("list")
def list_(
    check: Annotated[
        bool, typer.Option("--check", help="Read each backup completely and report whether it is intact.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the backups in the backups folder, oldest first. Exit code 1 if a backup is damaged."""
    from postroom.app.backups import examined_backups

    with show.progress(as_json=as_json):
        items = examined_backups(_folder(data_dir), check=check)
    rows = [
        (
            item["name"],
            item["made_at"],
            f"{item['size']:,}",
            f"damaged: {item['fault']}" if item["fault"] else "whole" if item["checked"] else "",
        )
        for item in items
    ]
    show.answer(
        {"backups": items},
        as_json=as_json,
        text=lambda: show.table(("NAME", "MADE", "BYTES", "STATE"), rows, none="No backups."),
    )
    if any(item["fault"] for item in items):
        raise typer.Exit(1)


@backups.command()
def prune(
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many of the newest backups to keep.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which backups would be removed, without removing them.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove all but the newest backups that postroom made. Other files in the folder are kept.

    The backups to keep are verified first. Damaged backups do not count and are removed.
    """
    from postroom.app.backups import backups_beyond, remove

    folder = _folder(data_dir)
    with show.progress(as_json=as_json):
        chosen = backups_beyond(folder, keep)
    if not dry_run:
        for backup in chosen:
            remove(backup)
    freed = 0 if dry_run else sum(backup.size for backup in chosen)
    names = [backup.path.name for backup in chosen]
    document = {"removed": names, "freed": freed, "dry_run": dry_run}
    would = "would be removed" if dry_run else "removed"
    lines = [f"{show.line(name)} {would}" for name in names] or ["Nothing to remove."]
    if freed:
        lines.append(f"Freed {freed:,} bytes.")
    show.answer(document, as_json=as_json, text=lambda: "\n".join(lines))


@app.command()
def restore(
    # The argument parser must not check the file: it would report an unreadable file as wrong usage.
    file: Annotated[
        Path,
        typer.Argument(
            metavar="BACKUP", help="The backup file, or the backup's name in `backup list`.", readable=False
        ),
    ],
    to: Annotated[Path | None, typer.Option(metavar="PATH", help="Restore to this path instead.")] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace the existing database. The old database is kept in the same folder."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything without changing anything.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replace the database with a backup. The backup is verified first. Stop the server before you run this.

    If the archive is newer than the backup, it is moved aside so that the server can start.
    """
    from postroom.app.backups import named_backup
    from postroom.app.config import load_settings
    from postroom.app.store_identity import adopt_restored
    from postroom.stores.postgres.errors import no_backup
    from postroom.stores.sqlite.restoring import RestoreOptions, restore

    settings = load_settings(overrides={"data_dir": data_dir, "database": to})
    if settings.database_url:
        raise no_backup()
    environment = places.environment()
    wish = RestoreOptions(
        source=named_backup(places.absolute(str(file), environment), settings),
        database=settings.database,
        force=force,
        dry_run=dry_run,
    )
    with show.progress(as_json=as_json):
        done = restore(wish, now=SystemClock().now())
        archive = adopt_restored(settings, SystemClock()) if done.done and to is None else None
    document = done.as_dict() | {"archive": None if archive is None else str(archive)}
    show.answer(document, as_json=as_json, text=lambda: _print_check(document))


def _folder(data_dir: Path | None) -> Path:
    from postroom.app.backups import get_backups_folder
    from postroom.app.config import load_settings

    return get_backups_folder(load_settings(overrides={"data_dir": data_dir}))


def _print_check(document: dict[str, object]) -> str:
    source, database, former = (document[key] for key in ("source", "database", "former"))
    was, kept_text = ("was restored", "is kept") if document["done"] else ("can be restored", "would be kept")
    text = f"{show.line(source)} (schema {document['schema']}) {was} to {show.line(database)}"
    lines = [text, f"the previous database {kept_text} as {show.line(former)}"] if former else [text]
    if document["archive"]:
        lines.append(
            "the archive is newer than the backup or belongs to another database, so it was moved to "
            f"{show.line(document['archive'])}; start the server, then run `postroom rebuild archive`"
        )
    return "\n".join(lines)
