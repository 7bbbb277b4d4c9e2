"""`postroom reservations`: reserved files and their holders."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from postroom.cli import show
from postroom.cli.call import shows
from postroom.cli.client import Server
from postroom.cli.exit_codes import FAILED
from postroom.cli.help_text import command_group
from postroom.cli.options import HERE, Acting, AsJson, Key, Project, Ttl, completed, numbered, project_key
from postroom.contracts.errors import InvalidArgument

app = command_group(
    "Reserve files before editing them.",
    "reservations reserve 'piers/**' --as Ada --reason 'place lights'",
    "reservations check piers/north.py --as Ben",
    "reservations release --all --as Ada",
)

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Paths relative to the project, such as src/**, or port:8080."),
]
SomePaths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Only the reservations of these paths and of paths below them."),
]
Ids = Annotated[
    list[int] | None,
    typer.Option(
        "--id",
        parser=numbered("reservation"),
        metavar="ID",
        help="A reservation's number.",
        autocompletion=completed("reservations"),
    ),
]
Shared = Annotated[
    bool,
    typer.Option("--shared", help="Allow other agents to reserve the same paths if they use --shared, too."),
]


@shows(app, "list_file_reservations")
def _(found: dict[str, Any]) -> str:
    return _print_list(found, "reservations")


@app.command()
def reserve(  # noqa: PLR0913 - the options of the command
    paths: Paths,
    acting: Acting,
    ttl: Ttl = None,
    shared: Shared = False,
    reason: Annotated[str | None, typer.Option(help="The reason, which other agents can see.")] = None,
    refuse: Annotated[
        bool, typer.Option("--refuse", help="Reserve nothing if another agent holds one of the paths.")
    ] = False,
    project: Project = HERE,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Reserve paths. A conflict is reported; with --refuse, it also prevents the reservation."""
    arguments = {
        "project_key": project_key(project),
        "agent_name": acting,
        "paths": paths,
        "ttl_seconds": ttl,
        "exclusive": not shared,
        "reason": reason,
        "mode": "refuse" if refuse else None,
        "idempotency_key": idempotency_key,
    }
    answer = show.fields(Server.find().call_tool("file_reservation_paths", arguments))
    show.answer(
        answer,
        as_json=as_json,
        text=lambda: "\n".join(filter(None, (_print_list(answer, "granted"), _conflicts(answer)))),
    )
    for pattern in () if as_json else answer.get("unmatched") or ():
        print(f"No file matches: {show.line(str(pattern))}", file=sys.stderr)


@app.command()
def release(  # noqa: PLR0913 - the options of the command
    acting: Acting,
    paths: SomePaths = None,
    ids: Ids = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Release all of the agent's reservations.")
    ] = False,
    project: Project = HERE,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Release the agent's reservations. Exit code 1 if the agent holds none of them."""
    if not (paths or ids or everything):
        raise InvalidArgument("no reservation was named", remedy="pass paths, --id ID, or --all")
    arguments = {
        "project_key": project_key(project),
        "agent_name": acting,
        "paths": paths or None,
        "ids": ids or None,
        "idempotency_key": idempotency_key,
    }
    answer = show.fields(Server.find().call_tool("release_file_reservations", arguments))
    _print_changes(answer, "released", as_json=as_json)
    if not (everything or answer.get("released")):
        raise typer.Exit(FAILED)


@app.command()
def renew(  # noqa: PLR0913 - the options of the command
    acting: Acting,
    paths: SomePaths = None,
    ids: Ids = None,
    ttl: Ttl = None,
    project: Project = HERE,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Renew the agent's reservations: the given ones, or all. Exit code 1 if none was renewed."""
    arguments = {
        "project_key": project_key(project),
        "agent_name": acting,
        "paths": paths or None,
        "ids": ids or None,
        "ttl_seconds": ttl,
        "idempotency_key": idempotency_key,
    }
    answer = show.fields(Server.find().call_tool("renew_file_reservations", arguments))
    _print_changes(answer, "renewed", as_json=as_json)
    if not answer.get("renewed"):
        raise typer.Exit(FAILED)


@app.command()
def check(
    paths: Paths,
    acting: Acting,
    shared: Shared = False,
    project: Project = HERE,
    as_json: AsJson = False,
) -> None:
    """List other agents' reservations that conflict with these paths. Exit code 1 if there are any."""
    arguments = {
        "project_key": project_key(project),
        "agent_name": acting,
        "paths": paths,
        "exclusive": not shared,
    }
    answer = show.fields(Server.find().call_tool("check_file_reservations", arguments))
    show.answer(answer, as_json=as_json, text=lambda: _conflicts(answer) or "free")
    if answer.get("conflicts"):
        raise typer.Exit(FAILED)


def _print_changes(found: Mapping[str, Any], key: str, *, as_json: bool) -> None:
    show.answer(found, as_json=as_json, text=lambda: _print_list(found, key))
    for item in () if as_json else found.get("not_found") or ():
        print(f"No reservation of this agent: {show.line(str(item))}", file=sys.stderr)


def _print_list(found: Mapping[str, Any], key: str) -> str:
    at_odds = {number for pair in found.get("conflicts") or () if key == "reservations" for number in pair}
    rows = [
        (
            item["id"],
            item["agent"],
            item["path"],
            ("exclusive" if item["exclusive"] else "shared")
            + (", conflict" if item["id"] in at_odds else ""),
            item["released_ts" if key == "released" else "expires_ts"],
            item["reason"],
        )
        for item in show.items(found.get(key))
    ]
    return show.table(
        ("ID", "AGENT", "PATH", "KIND", "RELEASED" if key == "released" else "UNTIL", "REASON"),
        rows,
        none="No reservations." if key == "reservations" else f"Nothing {key}.",
    )


def _conflicts(found: Mapping[str, Any]) -> str:
    lines = [
        f"conflict on {show.line(item['path'])}: {show.line(held['agent'])} holds {show.line(held['path'])}"
        f" until {held['expires_ts']}" + (f" ({show.line(held['reason'])})" if held["reason"] else "")
        for item in show.items(found.get("conflicts"))
        for held in show.items(item.get("holders"))
    ]
    return "\n".join(lines)
