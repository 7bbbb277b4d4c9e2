"""`postroom projects`: which there are, and one of two."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.exit_codes import REFUSED
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir, completed, project_key

app = typer.Typer(
    help="List projects, and make one of two. For the operator.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("projects list", "projects merge ~/harbour-worktree ~/harbour --dry-run"),
)

LONGEST: Final = timedelta(hours=1)
_MOVED: Final = ("agents", "messages", "reservations", "tokens")
_NAMED: Final = 10
"""Threads that are named one by one."""

_Key = Annotated[str, typer.Argument(metavar="PATH|SLUG", autocompletion=completed("projects"))]


@app.command("list")
def list_projects(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every project: its slug and its folder."""
    found = Server.find(data_dir=data_dir).admin("GET", "/admin/projects")
    rows = [(one["slug"], one["human_key"]) for one in show.items(found.get("projects"))]
    show.answer(
        found,
        as_json=as_json,
        text=lambda: show.table(("PROJECT", "FOLDER"), rows, none="there is no project yet"),
    )


@app.command()
def merge(
    source: _Key,
    into: _Key,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give the second project all that the first has. Ids, threads and names stay; the first is gone.

    Path and slug of the first name the second from then on, so that its agents go on without registering
    again. It is one change: all of it is done, or nothing. There is no way back but a backup.
    """
    asked = {"source": project_key(source), "target": project_key(into), "dry_run": dry_run}
    with show.progress(as_json=as_json):
        server, doing = Server.find(data_dir=data_dir, timeout=LONGEST), "counting" if dry_run else "merging"
        found = server.admin_long(doing, "POST", "/admin/projects/merge", asked)
    show.answer(found, as_json=as_json, text=lambda: _told(found))
    if found["refusals"]:
        raise typer.Exit(REFUSED)


def _told(found: Mapping[str, Any]) -> str:
    source, target = show.line(found["from"]["slug"]), show.line(found["into"]["slug"])
    if found["refusals"]:
        reasons = [f"  {show.line(reason)}" for reason in found["refusals"]]
        return "\n".join([f"{source} cannot be merged into {target}:", *reasons])
    moved = ", ".join(f"{found[name]} {name if found[name] != 1 else name[:-1]}" for name in _MOVED)
    lines = [f"{source} {'would become' if found['dry_run'] else 'is now'} {target}: {moved}"]
    if found["tokens"]:
        lines.append(f"  tokens that were bound to {source} reach all of {target}")
    if threads := found["threads_joined"]:
        more = f" and {len(threads) - _NAMED} more" if len(threads) > _NAMED else ""
        lines.append(
            f"  threads that both have become one: {', '.join(map(show.line, threads[:_NAMED]))}{more}"
        )
    for one in found["conflicts"]:
        first, second = (f"{show.line(side['agent'])}: {show.line(side['pattern'])}" for side in one)
        lines.append(f"  reservations that overlap: {first} and {second}")
    return "\n".join(lines)
