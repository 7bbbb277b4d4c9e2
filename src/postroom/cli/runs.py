"""`postroom runs`: the runs of agents and chats."""

import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.call import call, shows
from postroom.cli.exit_codes import DONE, FAILED
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir, completed
from postroom.cli.watch import leave_when_unread
from postroom.contracts.quoting import end_of, strip_partial_escape, without_escapes

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Manage the runs of agents and chats.",
    epilog=examples("runs list", "runs show 01a2179b --follow", "runs why 01a2179b", "runs replay 01a2179b"),
)

Run = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The run id or dispatch id, or the first characters of it.",
        autocompletion=completed("runs"),
    ),
]
_POLL_SECONDS: Final = 0.5
_OPEN: Final = ("at work", "queued", "asks")
_OUTPUT_SHOWN: Final = 4_000
"""How many characters at the end of a run's output are shown to people."""


@app.callback()
def runs() -> None:
    """Manage the runs of agents and chats."""


def explain(found: Mapping[str, Any]) -> str:
    """Return why a run is not executing or why it ended; for a retried run, its last error, too."""
    if not found.get("last_error"):
        return str(found["why"])
    failed = found["attempts"] - (found["state"] == "at work")
    then = f"next at {found['until']}" if found["until"] else found["why"]
    count = f"{failed} failed attempt{'' if failed == 1 else 's'}"
    return f"{', '.join(filter(None, (count, then)))}: {found['last_error']}"


@shows(app, "list_runs")
def _(found: dict[str, Any]) -> str:
    rows = [
        (
            item["run_id"],
            show.agent(item),
            show.state_word(item["state"]),
            item["finished_at"] or item["started_at"] or item["created_at"],
            explain(item),
        )
        for item in show.items(found.get("runs"))
    ]
    rows += [
        (f"message {item['message']}", show.agent(item), "waits", item["since_at"], item["why"])
        for item in show.items(found.get("waiting"))
    ]
    return show.table(("ID", "AGENT", "STATE", "SINCE", "WHY"), rows, none="No runs.")


@app.command("show")
def show_one(
    run: Run,
    output: Annotated[bool, typer.Option("--output", help="Print all stored output.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new output until the run ends.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's state, its cause, and the end of its output.

    --follow ends when the run ends: with exit code 0 if it succeeded, 1 if it failed or was cancelled. With
    --json each line is a JSON object: a piece of output, and at the end the run.
    """
    if follow:
        raise typer.Exit(_follow(run, data_dir, as_json=as_json))
    answer = call("show_run", data_dir=data_dir, run=run, output="whole" if output else "end")
    if output and not as_json:
        show.print_line(show.plain(without_escapes(str(answer["output"]))))
        return
    show.answer(answer, as_json=as_json, text=lambda: _print_run(answer))


@app.command()
def why(run: Run, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Explain why a run is not executing, or why it ended."""
    shown = call("show_run", data_dir=data_dir, run=run, output="end")
    by_name = {name: value for name, value in shown.items() if not name.startswith("output")}
    show.answer(by_name, as_json=as_json, text=lambda: _reason(by_name))


@shows(app, "cancel_run")
def _(found: dict[str, Any]) -> str:
    return f"Requested the cancellation of {show.line(found['run_id'])}."


@shows(app, "replay_run")
def _(found: dict[str, Any]) -> str:
    return f"Replaying the dead letter as run {show.line(found['run_id'])}."


@shows(app, "hasten_run")
def _(found: dict[str, Any]) -> str:
    return f"Run {show.line(found['run_id'])} is {show.state_word(str(found['state']))}."


@app.command()
def discard(
    run: Annotated[
        str,
        typer.Argument(
            metavar="ID|all",
            help=("The run id or dispatch id, or the first characters of it; `all` for every dead letter."),
            autocompletion=completed("runs"),
        ),
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Discard a dead letter. The run remains failed."""
    listed = show.items(call("list_dead_letters", data_dir=data_dir).get("dead")) if run == "all" else ()
    ids = [item["run_id"] for item in listed] if run == "all" else [run]
    gone = [str(call("discard_run", data_dir=data_dir, run=item)["run_id"]) for item in ids]
    show.answer({"discarded": gone}, as_json=as_json, text=lambda: show.discarded(gone))


@shows(app, "show_control_room")
def _(found: dict[str, Any]) -> str:
    """Return the control room of a project as text."""
    # Write a line with the paths and the holders of each group of conflicting reservations.
    pairs = found["conflicts"]
    from postroom.mail.reservations import together  # other commands do not need it

    both = ((_describe_hold(pair["first"]), _describe_hold(pair["second"])) for pair in pairs)
    lines = []
    for group in together(both):
        holders: dict[str, list[str]] = {}
        for held in group:
            holders.setdefault(held.pattern, []).append(held.holder)
        lines.append("; ".join(f"{pattern}: {', '.join(names)}" for pattern, names in holders.items()))
    lists = {
        "SERVER": [item["text"] for item in found["health"]],
        "QUESTIONS": [
            f"{question['number']}  {question['agent']}: {question['text']}"
            for question in found["questions"]
        ],
        "FAILED": [
            f"{item['run_ids'][0]}  {item['agent']}: {item['why']}"
            + (f" (the same failure {len(item['run_ids'])} times)" if len(item["run_ids"]) > 1 else "")
            for item in found["failed"]
        ],
        "CONFLICTING RESERVATIONS": lines,
        "RUNS": [
            f"{work['run_id']}  {show.agent(work)}: "
            + ", ".join(filter(None, (show.state_word(work["state"]), explain(work))))
            for work in found["works"]
        ],
        "WAITING FOR EACH OTHER": [
            f"{' -> '.join(wait['names'])}: {show.state_word(wait['state'])}" for wait in found["waits"]
        ],
        "WAITING MESSAGES": [
            f"#{item['message']} for {show.agent(item)}: {item['why']}" for item in found["waiting"]
        ],
        "UNREAD AND UNACKNOWLEDGED": [
            f"#{item['id']} {item['subject']}: missing {', '.join(item['missing'])}" for item in found["owed"]
        ],
    }
    return "\n\n".join(
        "\n".join([head, *(show.folded(f"  {show.moment(row)}", "    ") for row in rows)])
        for head, rows in lists.items()
        if rows
    )


@dataclass(frozen=True, slots=True)
class _Held:
    id: int
    holder: str
    pattern: str


def _describe_hold(one: Mapping[str, Any]) -> _Held:
    return _Held(one["id"], one["holder"], one["pattern"])


@shows(app, "list_dead_letters")
def _(found: dict[str, Any]) -> str:
    rows = [
        (
            item["run_id"],
            show.agent(item),
            item["since"],
            item["attempts"],
            item["interruptions"],
            item["error"] or "",
        )
        for item in show.items(found.get("dead"))
    ]
    heads = ("ID", "AGENT", "SINCE", "FAILED ATTEMPTS", "INTERRUPTIONS", "WHY")
    return show.table(heads, rows, none="No dead letters.")


def _follow(run: str, data_dir: Path | None, *, as_json: bool) -> int:
    printed, seen = "", ""
    while True:
        leave_when_unread()
        answer = call("show_run", data_dir=data_dir, run=run, output="whole")
        output, state = str(answer["output"]), str(answer["state"])
        run = str(answer["run_id"])  # a prefix of the id may match another run later
        if state in _OPEN and state != seen and not as_json and sys.stderr.isatty():
            print(f"[{show.line(run)}: {_reason(answer)}]", file=sys.stderr)
        seen = state
        whole = output if as_json else without_escapes(strip_partial_escape(output))
        if piece := whole[len(printed) :] if whole.startswith(printed) else whole:
            show.write(f"{json.dumps({'output': piece})}\n" if as_json else show.plain(piece))
            printed = whole
        if state not in _OPEN:
            break
        threading.Event().wait(_POLL_SECONDS)
    if as_json:
        show.print_line(json.dumps({name: item for name, item in answer.items() if name != "output"}))
    else:
        show.print_line(("" if not printed or printed.endswith("\n") else "\n") + _reason(answer))
    return DONE if state == "done" else FAILED


def _reason(found: Mapping[str, Any]) -> str:
    word = show.state_word(str(found["state"]))
    if found.get("last_error"):
        return f"{word}: {show.moment(explain(found))}"
    text = f"{word}: {show.line(found['why'])}" if found["why"] else word
    return f"{text}, until {show.moment(found['until'])}" if found["until"] else str(text)


def _print_run(found: Mapping[str, Any]) -> str:
    facts = {name: value for name, value in found.items() if not name.startswith("output")}
    facts["state"] = show.state_word(str(facts["state"]))
    output = str(found["output"])
    text = show.plain(without_escapes(end_of(output, _OUTPUT_SHOWN)))
    is_cut = found["output_is_cut"] or len(output) > _OUTPUT_SHOWN
    if not text:
        return show.outline(facts)
    cut = f" (the end; `postroom runs show {found['run_id']} --output` prints all)" if is_cut else ""
    return f"{show.outline(facts)}\noutput{cut}:\n{text}"
