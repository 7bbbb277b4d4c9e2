"""`postroom agents`: the agents of a project, and their tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.cli import runners, show
from postroom.cli.client import Server
from postroom.cli.help_text import examples
from postroom.cli.options import HERE, Acting, AsJson, DataDir, Key, Project, project_key

app = typer.Typer(
    help="List, register and retire agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples(
        'agents register Ada --task "lights of the harbour"',
        "agents list",
        "agents set-runner Bo -- python3 tools/bo.py",
    ),
)

app.command("set-runner")(runners.set_runner)
app.command("unset-runner")(runners.unset_runner)
app.command("runners")(runners.runners)

Name = runners.Name


@app.command("list")
def list_all(
    retired: Annotated[bool, typer.Option("--retired", help="Include retired agents.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of agents.")] = 200,
    after: Annotated[int, typer.Option(metavar="N", min=0, help="Continue after a page: its `next`.")] = 0,
    project: Project = HERE,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the agents of a project."""
    asked = {"project_key": project_key(project), "include_retired": retired, "limit": limit, "after": after}
    found = show.fields(Server.find(data_dir=data_dir).call_tool("list_agents", asked))
    show.answer(found, as_json=as_json, text=lambda: _listed(found))


@app.command()
def register(  # noqa: PLR0913 - the options of the command
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The agent's name. Default: a new random name.")
    ] = None,
    program: Annotated[str, typer.Option(help="The program that runs the agent.")] = "cli",
    model: Annotated[str, typer.Option(help="The model of the agent.")] = "unknown",
    task: Annotated[str | None, typer.Option(help="The agent's task.")] = None,
    project: Project = HERE,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Register or update an agent. Without a project for this folder, a new project is created."""
    slug = key = project_key(project)
    server = Server.find(data_dir=data_dir)
    if Path(key).is_absolute():
        slug = str(show.fields(server.call_tool("ensure_project", {"human_key": key}))["slug"])
    found = show.fields(
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
    text = f"Registered {show.line(found['name'])} in {show.line(slug)}."
    show.answer({**found, "project": slug}, as_json=as_json, text=lambda: text)


@app.command("show")
def show_one(name: Name, project: Project = HERE, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show an agent, its waiting messages and reservations, and how a message reaches it."""
    found = show.fields(
        Server.find(data_dir=data_dir).call_tool(
            "whois", {"project_key": project_key(project), "agent_name": name}
        )
    )
    show.answer(found, as_json=as_json, text=lambda: show.outline(found))


@app.command("request-contact")
def request_contact(  # noqa: PLR0913 - the options of the command
    other: Annotated[
        str, typer.Argument(metavar="NAME", help="The agent to ask. In another project: name@project.")
    ],
    acting: Acting,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason for the request.")] = "",
    project: Project = HERE,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Ask an agent to accept another agent's messages. A repeated request has no effect."""
    asked = {"project_key": project_key(project), "agent_name": acting, "to": other, "reason": reason}
    found = show.fields(
        Server.find(data_dir=data_dir).call_tool(
            "request_contact", {**asked, "idempotency_key": idempotency_key}
        )
    )
    show.answer(
        found, as_json=as_json, text=lambda: f"Asked {show.line(other)}: {show.line(found['status'])}."
    )


@app.command()
def retire(
    name: Name,
    project: Project = HERE,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Retire an agent. It sends and receives nothing, and its reservations end."""
    found = _change("retire_agent", name, project, idempotency_key, data_dir)
    show.answer(found, as_json=as_json, text=lambda: f"Retired {show.line(name)} at {found['retired_at']}.")


@app.command()
def unretire(
    name: Name,
    project: Project = HERE,
    idempotency_key: Key = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a retired agent active again."""
    found = _change("unretire_agent", name, project, idempotency_key, data_dir)
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)} is active.")


@app.command()
def token(name: Name, project: Project = HERE, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Print a new token for an agent. It is shown once and replaces the previous token."""
    found = Server.find(data_dir=data_dir).admin("POST", "/admin/agent-token", _named(name, project))
    show.answer(found, as_json=as_json, text=lambda: show.line(found["token"]))


@app.command("revoke-token")
def revoke_token(
    name: Name, project: Project = HERE, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Revoke an agent's token. Without a token, nothing happens."""
    found = Server.find(data_dir=data_dir).admin("DELETE", "/admin/agent-token", _named(name, project))
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)} has no token.")


def _change(tool: str, name: str, project: str, key: str | None, data_dir: Path | None) -> dict[str, Any]:
    asked = {"project_key": project_key(project), "agent_name": name, "idempotency_key": key}
    return show.fields(Server.find(data_dir=data_dir).call_tool(tool, asked))


def _named(name: str, project: str) -> dict[str, object]:
    return {"project": project_key(project), "agent": name}


def _listed(found: Mapping[str, Any]) -> str:
    show.tell_more(found, "--after")
    rows = [
        (
            one["name"],
            one["program"],
            one["model"],
            one["task_description"],
            "retired" if one["retired_at"] else one["last_active_at"],
        )
        for one in show.items(found.get("agents"))
    ]
    return show.table(("NAME", "PROGRAM", "MODEL", "TASK", "LAST ACTIVE"), rows, none="No agents.")
