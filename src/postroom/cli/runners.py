"""`postroom agents set-runner` and its like: which agents are started when mail comes for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.options import HERE, AsJson, Project, project_key
from postroom.contracts.errors import InvalidArgument

_UNITS = {"s": 1, "m": 60, "h": 3600}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent.")]
Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- COMMAND...]", help="The program and its words; never read by a shell."),
]


def set_runner(  # noqa: PLR0913 - the options of the command
    name: Name,
    command: Command = None,
    recipe: Annotated[
        str, typer.Option(help="How its output is read: shell, claude, codex, gemini or opencode.")
    ] = "shell",
    prompt: Annotated[
        str,
        typer.Option(help="How it is given its mail: stdin, argument ({prompt}) or file ({prompt_file})."),
    ] = "",
    cwd: Annotated[Path | None, typer.Option(help="Its working folder; by default the project's.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Given to it literally.")
    ] = None,
    pass_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Taken from the server's environment.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="How long it may take, such as 30m.")] = "30m",
    idle_timeout: Annotated[str | None, typer.Option(help="How long it may say nothing, such as 5m.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the client's own session.")] = False,
    project: Project = HERE,
    as_json: AsJson = False,
) -> None:
    """Have the server run an agent when mail comes for it.

    `postroom agents set-runner Bo --recipe claude --resume` or
    `postroom agents set-runner Bo -- python3 tools/bo.py`
    """
    key = project_key(project)
    runner: dict[str, object] = {
        "recipe": recipe,
        "argv": command or [],
        "env": dict(_pair(one) for one in env or ()),
        "pass_env": pass_env or [],
        "timeout": _seconds(timeout),
        "resume": resume,
    }
    if cwd is not None:
        runner["cwd"] = str(cwd.absolute())
    if prompt:
        runner["prompt"] = prompt
    if idle_timeout is not None:
        runner["idle_timeout"] = _seconds(idle_timeout)
    asked = {"project": key, "agent": name, "runner": runner}
    found = Server.find().admin("PUT", "/admin/runners", asked)
    said = "another runner now" if found.get("replaced") else "a runner: mail to it starts it"
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)} has {said}")


def unset_runner(name: Name, project: Project = HERE, as_json: AsJson = False) -> None:
    """Have the server run an agent no more. Its mail waits in its inbox."""
    found = Server.find().admin("DELETE", "/admin/runners", {"project": project_key(project), "agent": name})
    said = "no runner any more" if found.get("removed") else "no runner"
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)} has {said}")


def runners(project: Project = HERE, as_json: AsJson = False) -> None:
    """List which agents of a project are run by the server, and how."""
    asked = urlencode({"project": project_key(project)})
    found = Server.find().admin("GET", f"/admin/runners?{asked}")
    show.answer(found, as_json=as_json, text=lambda: _listed(show.items(found.get("runners"))))


def _listed(found: Sequence[Any]) -> str:
    rows = []
    for one in found:
        runner = one["runner"]
        words = runner.get("error") or " ".join(runner.get("argv") or [runner.get("recipe", "")])
        rows.append((one["agent"], runner.get("recipe", "?"), words, one["declared_by"]))
    return show.table(
        ("AGENT", "RECIPE", "COMMAND", "DECLARED BY"), rows, none="no agent is run by the server"
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"--env {name!r} has no value", value=name, remedy="write NAME=VALUE")
    return name, value


def _seconds(text: str) -> float:
    number, unit = (text[:-1], _UNITS[text[-1]]) if text and text[-1] in _UNITS else (text, 1)
    try:
        return float(number) * unit
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is no length of time", value=text, remedy="write 90, 90s, 30m or 2h"
        ) from None
