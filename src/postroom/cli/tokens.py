"""`postroom tokens`: tokens for programs, each with a name, scopes and optionally a project.

The command generates a token, and sends only the hash of the token. So a call can be repeated if its response
is lost.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.app.tokens import new_named_token
from postroom.cli import show
from postroom.cli.call import call, shows
from postroom.cli.help_text import command_group
from postroom.cli.options import AsJson, DataDir, project_key, seconds
from postroom.contracts.errors import InvalidPath, PostroomError

app = command_group(
    "Create, list, replace and revoke tokens for programs. For the operator.",
    "tokens create ci --scope mail:read",
    "tokens list",
    "tokens rotate ci",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the token to a new private file instead of printing it."),
]


@app.command()
def create(  # noqa: PLR0913 - the options of the command
    name: Name,
    scope: Annotated[
        list[str], typer.Option(help="A scope: mail:read, mail:send, reserve, run or admin. Repeatable.")
    ],
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            "-p",
            metavar="PATH|SLUG",
            help="Limit the token to this project.",
            show_default="all",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Lifetime of the token, such as 90d or 12h.", show_default="never"),
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it. The token is shown only once.

    `postroom tokens create ci --scope mail:read --scope mail:send --project . --expires 90d`
    """
    arguments = {
        "name": name,
        "scopes": scope,
        "project": None if project is None else project_key(project),
        "life_seconds": None if expires is None else seconds(expires, option="--expires"),
    }
    _make("create_token", arguments, out, data_dir, as_json=as_json)


@app.command()
def rotate(
    name: Name,
    overlap: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long the old token stays valid, such as 24h. 0s ends it now."),
    ] = "24h",
    out: Out = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replace a token with a new token that has the same rights. The old token expires after the overlap."""
    arguments = {"name": name, "overlap_seconds": seconds(overlap, option="--overlap")}
    _make("rotate_token", arguments, out, data_dir, as_json=as_json)


@shows(app, "revoke_token")
def _(found: dict[str, Any], sent: dict[str, Any]) -> str:
    return f"{show.line(sent['name'])} {'is revoked' if found.get('revoked') else 'was not valid'}"


@shows(app, "list_tokens")
def _(found: dict[str, Any]) -> str:
    rows = []
    for item in show.items(found.get("tokens")):
        state, until = item["state"], item["expires_at"]
        if state in ("revoked", "expired"):
            state = f"{state} {item['revoked_at'] or until}"
        elif until is None:
            state = "valid" if state == "valid" else "replaced, valid"
        else:
            state = f"{'valid' if state == 'valid' else 'replaced,'} until {until}"
        used, scopes = item["last_used_at"] or "never used", " ".join(item["scopes"])
        rows.append((item["name"], scopes, item["project"] or "all", state, item["id"], used))
    heads = ("NAME", "SCOPES", "PROJECT", "STATE", "ID", "LAST USED")
    return show.table(heads, rows, none="No tokens.")


def _make(
    operation: str, asked: Mapping[str, object], out: Path | None, data_dir: Path | None, *, as_json: bool
) -> None:
    made = new_named_token()
    if out is not None:
        # Only this user can read the new file.
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidPath(
                f"cannot create {out}: {error.strerror}",
                value=str(out),
                remedy="choose a new file name in a folder that you can write to",
            ) from error
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a Path cannot open a descriptor
            file.write(f"{made.token}\n")
    try:
        given_fields = {**asked, "id": made.id, "hash": made.hash}
        try:
            answer = call(operation, data_dir=data_dir, **given_fields)
        except PostroomError as error:
            if not error.retryable:
                raise
            answer = call(operation, data_dir=data_dir, **given_fields)  # the first call may have succeeded
    except PostroomError:
        if out is not None:
            out.unlink(missing_ok=True)
        raise
    show.answer(
        {**answer, **({"token": made.token} if out is None else {"file": str(out.absolute())})},
        as_json=as_json,
        text=lambda: made.token if out is None else f"Wrote the token to {show.line(out)}.",
    )
