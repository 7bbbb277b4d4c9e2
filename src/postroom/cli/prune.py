"""`postroom prune`: deletes messages by the `[[keep]]` rules, or counts them."""

from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.options import AsJson, DataDir

app = typer.Typer(rich_markup_mode=None)

LONGEST: Final = timedelta(hours=6)
_STAYS: Final = {
    "young": "too young",
    "unread": "unread or not acknowledged",
    "at_work": "assigned to a run",
    "held": "held",
    "no_rule": "without a rule",
}


@app.command()
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the messages, and delete none.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Delete the messages that no [[keep]] rule keeps.

    A running server does this every hour, in small steps, so that other work continues.
    """
    with show.progress(as_json=as_json):
        doing = "counting messages" if dry_run else "deleting messages"
        server = Server.find(data_dir=data_dir, timeout=LONGEST)
        found = server.admin_long(doing, "POST", "/admin/prune", {"dry_run": dry_run})
    show.answer(found, as_json=as_json, text=lambda: _told(found))


def _told(found: dict[str, Any]) -> str:
    if not found["rules"]:
        return "The configuration file has no [[keep]] rule, so every message is kept."
    lines = [_line(one["project"], one["counts"], is_done=not found["dry_run"]) for one in found["projects"]]
    return "\n".join(lines) or "No project has a rule."


def _line(project: str, counts: dict[str, int], *, is_done: bool) -> str:
    going = counts.get("goes", 0)
    stays = [f"{counts[name]} {text}" for name, text in _STAYS.items() if counts.get(name)]
    done = "deleted" if is_done else "would be deleted"
    return f"{show.line(project)}: {going} {done}" + (f"; kept: {', '.join(stays)}" if stays else "")
