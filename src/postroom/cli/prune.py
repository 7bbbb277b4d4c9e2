"""`postroom prune`: deletes the messages that the `[[keep]]` rules no longer keep, or counts them."""

from typing import Any, Final

import typer

from postroom.cli import show
from postroom.cli.call import shows

app = typer.Typer(rich_markup_mode=None)

_STAYS: Final = {
    "young": "too young",
    "unread": "unread or not acknowledged",
    "at_work": "assigned to a run",
    "held": "held",
    "no_rule": "without a rule",
}


@shows(app, "prune")
def _(found: dict[str, Any]) -> str:
    if not found["rules"]:
        return "The configuration file has no [[keep]] rule, so every message is kept."
    lines = [
        _line(project["project"], project["counts"], is_done=not found["dry_run"])
        for project in found["projects"]
    ]
    return "\n".join(lines) or "No project has a [[keep]] rule."


def _line(project: str, counts: dict[str, int], *, is_done: bool) -> str:
    going = counts.get("goes", 0)
    stays = [f"{counts[name]} {text}" for name, text in _STAYS.items() if counts.get(name)]
    done = "deleted" if is_done else "would be deleted"
    return f"{show.line(project)}: {going} {done}" + (f"; kept: {', '.join(stays)}" if stays else "")
