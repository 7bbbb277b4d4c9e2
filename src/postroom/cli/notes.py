"""`postroom notes`: facts about a project, which agents receive when they work on its files or tasks."""

from typing import Any

from postroom.cli import show
from postroom.cli.call import shows
from postroom.cli.help_text import command_group

app = command_group(
    "Add, find and end notes of a project.",
    "notes add tests 'Run make quick.' --as Ada --path 'piers/**'",
    "notes list lamp",
    "notes add tests 'Run make test.' --as Ben --replaces 1",
    "notes end 2 --as Ben",
)


@shows(app, "find_notes")
def _(found: dict[str, Any]) -> str:
    lines = []
    for note in show.items(found["notes"]):
        facts = (
            ("task", note["task_id"]),
            ("files", ", ".join(note["paths"])),
            ("commit", note["commit"]),
            ("run", note["run_id"]),
            ("replaces", ", ".join(map(str, note["replaces"]))),
            ("replaced by", note.get("replaced_by")),
            ("until", show.moment(note["expires_ts"])),
        )
        text = ", ".join(f"{name} {show.line(value)}" for name, value in facts if value)
        head = f"{note['id']}  {show.line(note['subject'])}: {show.line(note['text'])}"
        below = f"  {note['author']}, {show.moment(note['created_ts'])}; {text}"
        lines += [show.folded(head, "  "), show.folded(below, "  ")]
    if found["more"]:
        lines.append(f"{found['more']} more notes: pass --limit to see them.")
    return "\n".join(lines) or "No notes."


@shows(app, "add_note")
def _(found: dict[str, Any]) -> str:
    old = f", in place of {', '.join(map(str, found['replaces']))}" if found["replaces"] else ""
    return f"Note {found['id']} is active until {found['expires_ts']}{old}."


@shows(app, "end_note")
def _(found: dict[str, Any]) -> str:
    return f"Note {found['id']} has ended."
