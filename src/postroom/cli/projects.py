"""`postroom projects`: lists projects, changes their folders, and merges two projects."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.call import call, named_project, shows
from postroom.cli.exit_codes import REFUSED
from postroom.cli.help_text import command_group
from postroom.cli.options import AsJson, DataDir, completed
from postroom.contracts.errors import InvalidArgument

app = command_group(
    "List projects, move their folders, or merge two projects. For the operator.",
    "projects list",
    "projects merge ~/harbour-worktree ~/harbour --dry-run",
    "projects move harbour ~/boats/harbour",
)

_MOVED: Final = ("agents", "messages", "reservations", "tokens")
_NAMED: Final = 10
"""Maximum number of threads that are listed."""

_Key = Annotated[
    str,
    typer.Argument(
        metavar="PATH|SLUG",
        help="A folder or a slug. If the current folder contains a folder with this name, that folder is "
        "used.",
        autocompletion=completed("projects"),
    ),
]


@shows(app, "list_projects")
def _(found: dict[str, Any]) -> str:
    rows = [(item["slug"], item["human_key"]) for item in show.items(found.get("projects"))]
    return show.table(("PROJECT", "FOLDER"), rows, none="No projects.")


@shows(app, "move_project")
def _(found: dict[str, Any]) -> str:
    return f"Moved {show.line(found['slug'])} to {show.line(found['human_key'])}."


def _renames(given: Sequence[str]) -> dict[str, str]:
    """Return the new names of agents in `--rename` options, keyed by the old names.

    Raises:
        InvalidArgument: A value is not `OLD=NEW`, or an agent is named twice.
    """
    result: dict[str, str] = {}
    for value in given:
        old, _, new = value.partition("=")
        if not old or not new or old in result:
            raise InvalidArgument(
                f"--rename {value!r} " + ("names an agent twice" if old in result else "is not OLD=NEW"),
                value=value,
                remedy="write, for example, --rename Ada=Ada-2, once for each agent",
            )
        result[old] = new
    return result


@app.command()
def merge(  # noqa: PLR0913 - options of one command
    source: _Key,
    into: _Key,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="Rename an agent in the first project. Repeatable."),
    ] = None,
    rename_equal: Annotated[
        bool,
        typer.Option(
            "--rename-equal",
            help="Rename agents whose names exist in both projects: Ada becomes Ada-2.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would happen without changing anything.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Merge the first project into the second, then delete the first. Ids, threads and names stay.

    The first project's path and slug then refer to the second project, so agents need not register again.
    The merge is one transaction. Only a backup can undo it.
    """
    with show.progress(as_json=as_json):
        answer = call(
            "merge_projects",
            data_dir=data_dir,
            source=named_project(source),
            target=named_project(into),
            renames=_renames(rename or ()),
            rename_equal=rename_equal,
            dry_run=dry_run,
        )
    show.answer(answer, as_json=as_json, text=lambda: _print_merge(answer))
    if answer["refusals"]:
        raise typer.Exit(REFUSED)


def _print_merge(found: Mapping[str, Any]) -> str:
    source, target = show.line(found["from"]["slug"]), show.line(found["into"]["slug"])
    if found["refusals"]:
        reasons = [f"  {show.line(reason)}" for reason in found["refusals"]]
        return "\n".join([f"{source} cannot be merged into {target}:", *reasons])
    moved = ", ".join(f"{found[name]} {name if found[name] != 1 else name[:-1]}" for name in _MOVED)
    lines = [f"{source} {'would become' if found['dry_run'] else 'is now'} {target}: {moved}"]
    lines += [f"  {show.line(old)} is now {show.line(new)}" for old, new in found["renamed"].items()]
    if found["renamed"]:
        lines.append(
            f"  sessions of {source} that used a former name must use the new name: --as, POSTROOM_AGENT"
        )
    if found["tokens"]:
        lines.append(f"  tokens that were bound to {source} now give access to all of {target}")
    if threads := found["threads_joined"]:
        more = f" and {len(threads) - _NAMED} more" if len(threads) > _NAMED else ""
        lines.append(
            f"  threads of both projects were joined: {', '.join(map(show.line, threads[:_NAMED]))}{more}"
        )
    for conflict in found["conflicts"]:
        first, second = (f"{show.line(side['agent'])}: {show.line(side['pattern'])}" for side in conflict)
        lines.append(f"  reservations that overlap: {first} and {second}")
    return "\n".join(lines)
