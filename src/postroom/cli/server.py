"""The commands for the server: start it, connect to it over stdio, and show its status."""

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from postroom.cli import loading, show
from postroom.cli.call import call, perform, shows
from postroom.cli.client import Server
from postroom.cli.exit_codes import FAILED, exit_code
from postroom.cli.options import AsJson, DataDir, LogFormat, LogLevel
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import InvalidArgument, PostroomError, ServerUnavailable
from postroom.version import __version__

app = typer.Typer(rich_markup_mode=None)


@app.command()
def up(  # noqa: PLR0913 - the options of the command
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Addresses other than loopback require tokens.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Port to listen on. With 0, the system chooses a free port.",
        ),
    ] = None,
    profile: Annotated[
        Literal["full", "core"] | None,
        typer.Option(
            case_sensitive=False,
            help="The set of tools that clients see at the standard MCP URL.",
        ),
    ] = None,
    identity: Annotated[
        Literal["asserted", "verified"] | None,
        typer.Option(
            case_sensitive=False,
            help="How agents identify themselves: by name (asserted) or by token (verified).",
        ),
    ] = None,
    data_dir: DataDir = None,
    database: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The SQLite file.", readable=False)
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use a PostgreSQL database instead of a SQLite file. Set POSTROOM_DATABASE_URL instead "
            "to hide the password from other users.",
        ),
    ] = None,
    archive: Annotated[bool | None, typer.Option(help="Also write messages to the Git archive.")] = None,
    new_store: Annotated[
        bool,
        typer.Option(
            "--new-store",
            help="Accept a database that does not match the archive, and move the archive aside.",
        ),
    ] = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Start the server in the foreground. Ctrl-C stops it."""
    from postroom.app.config import Settings, load_settings

    overrides: dict[str, object] = {
        "host": host,
        "port": port,
        "profile": profile,
        "identity": identity,
        "data_dir": data_dir,
        "database": database,
        "database_url": database_url,
        "archive_enabled": archive,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings: Settings | None = None
    try:
        settings = load_settings(overrides=overrides)
        code = loading.server()(settings, new_store=new_store)
    except PostroomError as error:
        if settings is not None and settings.log_format == "json":
            from postroom.app.logs import log_refused_start

            log_refused_start(error, settings)
        else:
            show.failure(error, as_json=False)
            print(f"code: {error.code}", file=sys.stderr)
        code = exit_code(error)
    raise typer.Exit(code)


@app.command()
def mcp(
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Do not start a server if none is running.")
    ] = False,
    tools: Annotated[
        Literal["core", "full"] | None,
        typer.Option(
            case_sensitive=False,
            help="The tools to offer: the core tools, or all tools.",
            show_default="the server's setting",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Serve MCP on stdin and stdout for clients that start a command. Calls go to the shared server."""
    from postroom.cli.stdio import serve_stdio

    raise typer.Exit(serve_stdio(start=not no_start, data_dir=data_dir, tools=tools))


@app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the status of the running server. Exit code 75 if no server runs."""
    server = Server.find(data_dir=data_dir)
    answer = {"running": True, "url": server.endpoint.url, **perform(server, "show_status")}
    show.answer(answer, as_json=as_json, text=lambda: show.outline(answer))


@app.command()
def doctor(
    full: Annotated[
        bool, typer.Option("--full", help="Compare every record in the database with the archive.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired without loss.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: show the repairs without making them.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation. Exit code 1 if something is wrong. Only --repair needs a server."""
    if dry_run and not repair:
        raise InvalidArgument(
            "--dry-run needs --repair",
            value="--dry-run",
            remedy="add --repair to see the repairs; `doctor` without options changes nothing",
        )
    try:
        with show.progress(as_json=as_json):
            if repair:
                answer = call("repair_installation", data_dir=data_dir, full=full, dry_run=dry_run)
            else:
                answer = call("check_installation", data_dir=data_dir, full=full)
    except ServerUnavailable as error:
        if repair:  # only the server may write, so it makes the repairs
            raise
        from postroom.app.offline import examine_offline

        with show.progress(as_json=as_json):
            answer = dict(examine_offline(error, data_dir=data_dir, now=SystemClock().now()))
    show.answer(answer, as_json=as_json, text=lambda: _print_checks(answer))
    if not answer.get("ok"):
        raise typer.Exit(FAILED)


@shows(app, "make_login_link")
def _(found: dict[str, Any]) -> str:
    return show.line(found["url"])


@app.command()
def version(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the version of this command and of the running server."""
    server_version: str | None
    try:
        server_version = str(Server.find(data_dir=data_dir).admin("GET", "/healthz").get("version"))
    except PostroomError:  # this command always succeeds: `status` reports problems
        server_version = None
    fields: dict[str, object] = {
        "version": __version__,
        "server": server_version,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    served = f", server {show.line(fields['server'])}" if fields["server"] else ""
    show.answer(fields, as_json=as_json, text=lambda: f"postroom {__version__}{served}")


def _print_repair(one: Mapping[str, Any]) -> str:
    how = {"planned": "it would", "done": "done:", "failed": "failed:"}[one["state"]]
    why = f": {show.line(one['detail'])}" if one["detail"] else ""
    return f"{show.line(one['name'])}: {how} {show.line(one['does'])}{why}"


def _print_checks(found: Mapping[str, Any]) -> str:
    lines = []
    for item in show.items(found.get("checks")):
        detail = f": {show.moment(item['detail'])}" if item.get("detail") else ""
        lines.append(show.folded(f"{show.line(item['state']):<7} {show.line(item['name'])}{detail}", " " * 8))
        if item.get("remedy"):
            lines.append(f"        remedy: {show.line(item['remedy'])}")
    if "repairs" in found:
        lines += ["", *map(_print_repair, show.items(found["repairs"]))]
        if not found["repairs"]:
            lines.append("nothing can be repaired without loss")
    return "\n".join(lines)
