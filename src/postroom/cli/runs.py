"""`postroom runs`: what the server executes for agents and chats."""

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.options import AsJson, DataDir

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Runs of agents and of chats.")


@app.callback()
def runs() -> None:
    """Runs of agents and of chats."""


@app.command()
def dead(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the runs that were given up, oldest first, and why."""
    found = Server.find(data_dir=data_dir).admin("GET", "/admin/runs/dead")
    rows = [
        (one["dispatch_id"], one["thread_id"], one["since"], one["error"] or "")
        for one in show.items(found.get("dead"))
    ]
    show.answer(
        found,
        as_json=as_json,
        text=lambda: show.table(("ID", "THREAD", "SINCE", "WHY"), rows, none="no run was given up"),
    )
