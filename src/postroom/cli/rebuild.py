"""`postroom rebuild`: rebuilds the archive from the database, or the database from the archive."""

import asyncio
from pathlib import Path
from typing import Annotated, Final

import typer

from postroom.app import places
from postroom.cli import show
from postroom.cli.call import call
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir, project_key
from postroom.contracts import progress
from postroom.contracts.errors import InvalidPath

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Rebuild the archive from the database, or the database from the archive.",
    epilog=examples("rebuild archive", "rebuild database new.db"),
)

LACKS: Final = "the archive is written after the database, so the newest messages may be missing"


@app.command()
def archive(
    project: Annotated[
        str | None, typer.Argument(metavar="PATH|SLUG", help="The project. Default: all projects.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write the database's records to the Git archive.

    The running server does the work. Existing records are kept, so you can run this command at any time.
    """
    key = None if project is None else project_key(project)
    with show.progress(as_json=as_json):
        written = call("rebuild_archive", data_dir=data_dir, project=key)
    lines = [f"{show.line(slug)}: {_count_text(count, 'record')}" for slug, count in written.items()]
    show.answer({"written": written}, as_json=as_json, text=lambda: "\n".join(lines) or "No projects.")


@app.command()
def database(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The new database file.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="The archive. Default: this installation's archive."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a new database from the Git archive.

    Afterwards, put the new database in place with `postroom restore`, or with `postroom database copy` for
    PostgreSQL. The archive is written after the database, so messages of the last moments before the loss may
    be missing. Hidden recipients, read marks, contacts and tokens are not in the archive and are lost.
    """
    from postroom.app.config import load_settings
    from postroom.mail.archive.rebuild import holds_archive, no_archive

    environment = places.environment()
    settings = load_settings(overrides={"data_dir": data_dir})
    root = settings.storage_root if source is None else places.absolute(str(source), environment)
    chosen = places.absolute(str(target), environment)
    if chosen.exists():
        raise InvalidPath(f"{chosen} exists already", value=str(chosen), remedy="use another file name")
    if not root.is_dir() or not holds_archive(root):
        raise no_archive(root)
    with show.progress(as_json=as_json):
        progress.tell("reading the archive")
        try:
            rows = asyncio.run(_rebuild(root, chosen, (settings.git_author_name, settings.git_author_email)))
        except BaseException:
            chosen.unlink(missing_ok=True)  # the file was created just before, and is incomplete
            raise
    document = {"path": str(chosen), "rows": rows, "notes": [LACKS]}
    held = f"{_count_text(rows['messages'], 'message')} of {_count_text(rows['projects'], 'project')}"
    text = f"{show.line(chosen)} contains {held}\n{LACKS}"
    show.answer(document, as_json=as_json, text=lambda: text)


def _count_text(number: object, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


async def _rebuild(root: Path, target: Path, author: tuple[str, str]) -> dict[str, int]:
    from postroom.mail.archive.archive import read_mark
    from postroom.mail.archive.rebuild import read_root, write_rows
    from postroom.stores.sqlite import SqliteStore

    fields = await read_root(root, author)  # read before anything is created
    store = await asyncio.to_thread(SqliteStore.open, target, purpose="rebuild")
    try:
        rows = await write_rows(fields, root, store)
        if (mark := await asyncio.to_thread(read_mark, root)) is not None:
            await store.identify(mark.store_id)  # the new store replaces the lost one
        return rows
    finally:
        await asyncio.to_thread(store.close)
