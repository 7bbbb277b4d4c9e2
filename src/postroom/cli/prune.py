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
    lines = []
    done = "would be deleted" if found["dry_run"] else "deleted"
    for project in found["projects"]:
        counts = project["counts"]
        kept = ", ".join(f"{counts[name]} {text}" for name, text in _STAYS.items() if counts.get(name))
        text = f"{show.line(project['project'])}: {counts.get('goes', 0)} {done}"
        lines.append(f"{text}; kept: {kept}" if kept else text)
    return "\n".join(lines) or "No project has a [[keep]] rule."
