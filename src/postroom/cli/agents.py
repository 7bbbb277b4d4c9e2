"""`postroom agents`: the agents of a project, and their tokens."""

from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.cli import runners, show
from postroom.cli.call import shows
from postroom.cli.client import Server
from postroom.cli.help_text import command_group
from postroom.cli.options import HERE, AsJson, DataDir, Key, Project, project_key
from postroom.mail.names import check_name

app = command_group(
    "List, register and retire agents.",
    'agents register Ada --task "lights of the harbour"',
    "agents list",
    "agents set-runner Bo -- python3 tools/bo.py",
)

app.command("set-runner")(runners.set_runner)


@shows(app, "remove_runner")
def _(found: dict[str, Any], sent: dict[str, Any]) -> str:
    name = show.line(sent["agent"])
    told = [f"{name} has {'no runner now' if found.get('removed') else 'no runner'}."]
    told += [
        f"Question {number} stays open. An answer ends its run as failed, unless {name} has a runner again "
        f"by then. To close the question, cancel the run that `postroom questions show {number}` names."
        for number in found.get("open_questions") or ()
    ]
    return "\n".join(told)


@shows(app, "list_runners")
def _(found: dict[str, Any]) -> str:
    rows = []
    for item in show.items(found.get("runners")):
        runner = item["runner"]
        rows.append((item["agent"], runner.get("kind", "?"), runners.what_runs(runner), item["declared_by"]))
    return show.table(("AGENT", "KIND", "RUNS", "DECLARED BY"), rows, none="No agents with a runner.")


@shows(app, "list_agents")
def _(found: dict[str, Any]) -> str:
    show.tell_more(found, "--after")
    rows = [
        (
            item["name"],
            item["program"],
            item["model"],
            item["task_description"],
            "retired" if item["retired_at"] else item["last_active_at"],
        )
        for item in show.items(found.get("agents"))
    ]
    return show.table(("NAME", "PROGRAM", "MODEL", "TASK", "LAST ACTIVE"), rows, none="No agents.")


@app.command()
def register(  # noqa: PLR0913 - the options of the command
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The agent's name. Default: a new random name.")
    ] = None,
    program: Annotated[str, typer.Option(help="The agent's client program.")] = "cli",
    model: Annotated[str, typer.Option(help="The agent's model.")] = "unknown",
    task: Annotated[str | None, typer.Option(help="The agent's task.")] = None,
    project: Project = HERE,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Register or update an agent. If this folder has no project, one is created."""
    slug = key = project_key(project)
    if name is not None:
        check_name(name)
    server = Server.find(data_dir=data_dir)
    if Path(key).is_absolute():
        slug = str(show.fields(server.call_tool("ensure_project", {"human_key": key}))["slug"])
    answer = show.fields(
        server.call_tool(
            "register_agent",
            {
                "project_key": key,
                "name": name,
                "program": program,
                "model": model,
                "task_description": task,
                "idempotency_key": idempotency_key,
            },
        )
    )
    text = f"Registered {show.line(answer['name'])} in {show.line(slug)}."
    show.answer({**answer, "project": slug}, as_json=as_json, text=lambda: text)


@shows(app, "whois")
def _(found: dict[str, Any]) -> str:
    return show.outline(found)


@shows(app, "request_contact")
def _(found: dict[str, Any], sent: dict[str, Any]) -> str:
    return f"Asked {show.line(sent['to'])}: {show.line(found['status'])}."


@shows(app, "retire_agent")
def _(found: dict[str, Any], sent: dict[str, Any]) -> str:
    return f"Retired {show.line(sent['agent_name'])} at {found['retired_at']}."


@shows(app, "unretire_agent")
def _(_found: dict[str, Any], sent: dict[str, Any]) -> str:
    return f"{show.line(sent['agent_name'])} is active."


@shows(app, "issue_agent_token")
def _(found: dict[str, Any]) -> str:
    return show.line(found["token"])


@shows(app, "revoke_agent_token")
def _(_found: dict[str, Any], sent: dict[str, Any]) -> str:
    return f"{show.line(sent['agent'])} has no token."
