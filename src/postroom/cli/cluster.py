"""`postroom cluster status`: the servers that share the database, and the exclusive tasks of each server."""

from typing import Any

import typer

from postroom.cli import show
from postroom.cli.call import shows
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir

app = typer.Typer(
    help="Show the servers that share one PostgreSQL database.",
    rich_markup_mode=None,
    epilog=examples("cluster status", "cluster status --json"),
)


@app.callback(invoke_without_command=True)
def cluster(ctx: typer.Context, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the servers that share one PostgreSQL database."""
    ctx.default_map = {"status": {"data_dir": data_dir, "as_json": as_json}}
    if ctx.invoked_subcommand is None:
        status(data_dir=data_dir, as_json=as_json)


@shows(app, "show_cluster")
def status(found: dict[str, Any]) -> str:
    """Return a table of the servers, and a table of the tasks that only one server may do."""
    servers = [
        (
            f"{item['name']}{' (this one)' if item['is_this'] else ''}",
            item["address"],
            ", ".join(map(str, item["places"])),
            item["version"],
            item["since"],
        )
        for item in show.items(found.get("servers"))
    ]
    work = [
        (item["work"], item["server"] if item["is_held"] else "nobody", item["since"], item["until"])
        for item in show.items(found.get("work"))
    ]
    up = show.table(("SERVER", "ADDRESS", "IS", "VERSION", "SINCE"), servers, none="No servers are running.")
    return f"{up}\n\n{show.table(('WORK', 'DONE BY', 'SINCE', 'UNTIL'), work, none='No shared work.')}"
