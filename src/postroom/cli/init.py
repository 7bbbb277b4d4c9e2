"""`postroom init` prepares a folder in one step. `postroom whoami` shows which agent acts in a folder."""

import subprocess
import sys
from typing import Annotated, Any

import typer

from postroom.app import places
from postroom.app.clients.config_edits import Records
from postroom.app.clients.config_paths import SetupScope, chosen
from postroom.app.clients.setting_up import Part, parts, plan, steadily
from postroom.app.clients.status import extras_in_place
from postroom.app.clients.table import CLIENTS, Client
from postroom.cli import setup, show
from postroom.cli.client import Server
from postroom.cli.help_text import examples
from postroom.cli.options import AGENT_SETTING, HERE, AsJson, agent_of_folder, project_key
from postroom.cli.start import ensure_server
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import ServerUnavailable, UnknownAgent, UnknownProject
from postroom.mail.names import check_name

app = typer.Typer()


@app.command(
    epilog=examples("init", "init --as Ada --yes", "init claude codex --dry-run"),
    rich_help_panel=None,
)
def init(
    clients: setup.Names = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help=f"Register this agent as the repository's default agent (git config {AGENT_SETTING}).",
            show_default=False,
        ),
    ] = None,
    rules: Annotated[
        bool | None,
        typer.Option(
            "--rules/--no-rules",
            help="Add rules about mail and reservations to this folder's AGENTS.md.",
            show_default="ask",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to every question.")] = False,
    dry_run: setup.DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Start the server, connect clients, prepare this folder.

    The command creates the folder's project and, if you agree, adds rules for agents to AGENTS.md. Completed
    steps are not repeated, so you can run the command again. Exit code 78 if a client's file is refused, 1 if
    a test call fails.
    """
    target = SetupScope(environment=places.environment(), scope="user", is_dry_run=dry_run)
    taken = chosen(clients or [], target)
    answer = rules
    if answer is None:  # ask before anything changes
        asks = sys.stdin.isatty() and not (as_json or yes or dry_run)
        answer = typer.confirm(f"Write {setup.QUESTIONS['rules']}?", default=False, err=True) if asks else yes
    if taken and sys.stderr.isatty():
        titles = ", ".join(client.title for client in taken)
        print(f"Connecting {titles}: this takes some seconds for each client.", file=sys.stderr)
    served = setup.served(target.environment)
    started = not (dry_run or served.runs)
    if started:
        if failure := ensure_server(target.environment, lambda text: print(text, file=sys.stderr)):
            raise ServerUnavailable(
                f"the server did not start: {failure}",
                remedy="start it with `postroom up` and read its output",
            )
        served = setup.served(target.environment)
    results = setup.set_up(
        taken,
        target,
        questions=setup.Questions(
            given={"skill": False, "rules": False, "extension": False}, yes=False, asks=False
        ),
    )
    project = _project(agent, dry_run=dry_run)
    document = {
        "dry_run": dry_run,
        "server": {"address": served.address, "started": started, "runs": started or served.runs},
        **project,
        "clients": results,
        "rules": _rules(taken, is_wanted=answer, dry_run=dry_run),
        "notes": [
            note for note in setup.collect_notes(results, target, dry_run=dry_run) if "consent" not in note
        ],
    }
    if answer is False and rules is None and not document["rules"]:
        document["notes"].append("no rules were written to AGENTS.md; add --rules to write them")
    show.answer(document, as_json=as_json, text=lambda: _init_text(document))
    setup.end(results)


def _project(agent: str | None, *, dry_run: bool) -> dict[str, Any]:
    key = project_key(HERE)
    if agent is not None:
        check_name(agent)
    if dry_run:
        return {"project": None, "folder": key, "agent": agent, "default": _git("rev-parse", "--git-dir")}
    server = Server.find()
    slug = show.fields(server.call_tool("ensure_project", {"human_key": key}))["slug"]
    if agent is not None:
        arguments = {"project_key": key, "name": agent, "program": "cli", "model": "unknown"}
        agent = str(show.fields(server.call_tool("register_agent", arguments))["name"])
        is_default = _git("config", AGENT_SETTING, agent)
        return {"project": slug, "folder": key, "agent": agent, "default": is_default}
    return {"project": slug, "folder": key, "agent": agent_of_folder() or None}


def _git(*words: str) -> bool:
    try:
        return subprocess.run(("git", *words), capture_output=True, check=False).returncode == 0  # noqa: S603, S607
    except OSError:
        return False


def _rules(taken: list[Client], *, is_wanted: bool, dry_run: bool) -> str | None:
    target = SetupScope(environment=places.environment(), scope="project", is_dry_run=dry_run)
    client = next((client for client in (*taken, *CLIENTS) if _rules_part(client, target)), CLIENTS[0])
    wanted, records = _rules_part(client, target), Records(target.environment)
    if not is_wanted:
        has_rules = any("rules" in extras_in_place(client, target, records) for client in CLIENTS)
        return str(wanted[0].file.path) if has_rules else None
    if dry_run:
        plan(client, wanted, records)
    else:
        with records.kept():
            steadily(lambda: plan(client, wanted, records), records, SystemClock().now())
    return str(wanted[0].file.path)


def _rules_part(client: Client, target: SetupScope) -> list[Part]:
    if client.project is None:
        return []
    every = parts(client, target, "stdio", "", hooks=False, extras=["rules"])
    return [part for part in every if part.own is not None and part.own.extra == "rules"]


def _init_text(document: dict[str, Any]) -> str:
    server, name, is_dry = document["server"], document["agent"], document["dry_run"]
    state = "started" if server["started"] else "running" if server["runs"] else "would start"
    lines = [f"Server: {state} at {show.line(server['address'])}"]
    if is_dry:
        lines.append(f"Project: would be created for {show.line(document['folder'])}")
    else:
        lines.append(f"Project: {show.line(document['project'])} for {show.line(document['folder'])}")
    if name:
        name, outside_git = show.line(name), document.get("default") is False
        role = "registered" if outside_git else "the default agent of commands in this repository"
        lines.append(f"Agent: {name} {'would be' if is_dry else 'is'} {role}")
        taken = {result["client"] for result in document["clients"]}
        program = next((one.programs[0] for one in CLIENTS if one.name in taken and one.programs), "claude")
        who = "clients and commands" if outside_git else "a client"
        lines.append(f"  to make {who} act as {name}, set POSTROOM_AGENT: `POSTROOM_AGENT={name} {program}`")
    lines.append(setup.done_text({**document, "notes": []}))
    if document["rules"]:
        lines.append(f"Rules: {'would be written to' if is_dry else 'in'} {show.line(document['rules'])}")
    return "\n".join(line for line in [*lines, *map(show.line, document["notes"])] if line)


@app.command()
def whoami(as_json: AsJson = False) -> None:
    """Show which agent acts in this folder."""
    name, source = places.environment().get("POSTROOM_AGENT", ""), "POSTROOM_AGENT"
    if not name:
        name, source = agent_of_folder(), f"git config {AGENT_SETTING}"
    name, _, project = name.partition("@")
    key = project_key(project or HERE)
    document: dict[str, Any] = {
        "agent": name or None,
        "named_by": source if name else None,
        "project": key,
        "registered": False,
        "server": setup.served(places.environment()).address,
    }
    if name:
        try:
            answer = show.fields(Server.find().call_tool("whois", {"project_key": key, "agent_name": name}))
            document |= {"registered": True, "project": answer.get("project", key), "details": answer}
        except (UnknownAgent, UnknownProject) as error:
            document["why"] = error.message
    if name:
        lines = [f"{show.line(name)} in {show.line(document['project'])}, by {source}"]
        if not document["registered"]:
            lines.append(f"not registered: {show.line(document['why'])}")
            lines.append(f"remedy: run `postroom agents register {show.line(name)}`")
    else:
        lines = ["No agent is chosen in this folder."]
        lines.append(
            "remedy: set POSTROOM_AGENT, use --as, or in a Git repository run `postroom init --as NAME`"
        )
    text = "\n".join([*lines, f"server: {show.line(document['server'])}"])
    show.answer(document, as_json=as_json, text=lambda: text)
