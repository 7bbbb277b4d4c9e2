"""`postroom agents set-runner` and related commands, for the agents that mail starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.cli import show
from postroom.cli.call import call
from postroom.cli.options import HERE, AsJson, DataDir, Project, completed, project_key, seconds
from postroom.contracts.errors import InvalidArgument

Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent.", autocompletion=completed("agents"))]
Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND", help="The program and its arguments, run without a shell."),
]


def set_runner(  # noqa: PLR0913 - the options of the command
    name: Name,
    command: Command = None,
    kind: Annotated[
        str,
        typer.Option(
            help=(
                "How the server executes the agent: command (a program), acp (a program with the Agent "
                "Client Protocol), model (the built-in agent loop) or http (another server)."
            )
        ),
    ] = "command",
    recipe: Annotated[
        str | None,
        typer.Option(
            help=(
                "The recipe for a known client program: claude, codex, gemini, opencode, copilot or "
                "cline. Default: shell, which works for any program."
            )
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help=(
                "command: how the program receives its prompt: stdin (default); argument, in place of "
                "{prompt}; or file, whose name replaces {prompt_file}."
            )
        ),
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option(help="The working folder. Default: the project's folder.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set an environment variable for the program. Repeatable."),
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Copy a variable from the server's environment. Repeatable."),
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="Time limit for a run, such as 30m.")] = None,
    idle_timeout: Annotated[
        str | None, typer.Option(help="Stop a run whose program prints nothing for this long, such as 5m.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help=("Resume the program's last session, so that it remembers earlier messages.")
        ),
    ] = False,
    session_per: Annotated[
        str | None,
        typer.Option(
            help=(
                "With --resume: `thread` keeps one session for each mail thread "
                "(default), `agent` keeps one session for all threads."
            )
        ),
    ] = None,
    runs_on: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="With several servers: the host name or label of the server that runs the agent.",
        ),
    ] = None,
    runs_at_once: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Allow up to N runs of the agent at the same time, each for a different mail thread. "
            "Default: 1.",
        ),
    ] = None,
    claims_tasks: Annotated[
        bool,
        typer.Option("--claims-tasks", help="Claim ready tasks for the agent, and start a run for each."),
    ] = False,
    base_url: Annotated[
        str | None, typer.Option(help="model: the endpoint's URL, which ends with /v1.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="model: the name of the model at the endpoint.")] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=("model: the environment variable of the server that contains the API key.")
        ),
    ] = None,
    instructions: Annotated[Path | None, typer.Option(help="model: a file with the instructions.")] = None,
    max_steps: Annotated[
        int | None, typer.Option(help="model: maximum number of model calls per run.")
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="model: a mail operation that the model may call. Repeatable."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="http: the URL that receives the runs.")] = None,
    secret_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=("http: the environment variable of the server that contains the secret.")
        ),
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(help="http: a file of mode 0600 with the secret, on the server's machine.")
    ] = None,
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="http: allow plain HTTP to another machine.")
    ] = False,
    callback_base: Annotated[
        str | None,
        typer.Option(metavar="URL", help="http: the URL at which the other server reaches this server."),
    ] = None,
    project: Project = HERE,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set the runner of an agent: the server starts a run when mail arrives for it.

    \u0008
    Examples:
      set-runner Bo --recipe claude --resume
      set-runner Bo -- python3 tools/bo.py
      set-runner Bo --kind acp --recipe gemini --resume
      set-runner Bo --kind model --base-url http://gpu:8000/v1 --model qwen3
      set-runner Bo --kind http --url https://a.example/run --secret-env BO_KEY
    """
    fields: dict[str, object] = {
        "kind": kind,
        "argv": command,
        "recipe": recipe,
        "prompt": prompt,
        "cwd": None if cwd is None else str(cwd.absolute()),
        "env": dict(_pair(value) for value in env) if env else None,
        "pass_env": pass_env,
        "timeout": None if timeout is None else seconds(timeout, unit="s", option="--timeout"),
        "idle_timeout": None
        if idle_timeout is None
        else seconds(idle_timeout, unit="s", option="--idle-timeout"),
        "resume": resume or None,
        "session_per": session_per,
        "runs_on": runs_on,
        "runs_at_once": runs_at_once,
        "claims_tasks": claims_tasks or None,
        "base_url": base_url,
        "model": model,
        "api_key_env": api_key_env,
        "instructions": None if instructions is None else _read_text(instructions),
        "max_steps": max_steps,
        "tools": tool,
        "url": url,
        "secret_env": secret_env,
        "secret_file": None if secret_file is None else str(secret_file.absolute()),
        "allow_plain": allow_plain or None,
        "callback_base": callback_base,
    }
    runner = {field: value for field, value in fields.items() if value not in (None, [])}
    answer = call("set_runner", data_dir=data_dir, project=project_key(project), agent=name, runner=runner)
    text = "a new runner" if answer.get("replaced") else "a runner: messages start it"
    woken = ""  # older servers do not report the unread messages for which runs start now
    if waking := answer.get("waking"):
        started = "1 unread message starts" if waking == 1 else f"{show.line(waking)} unread messages start"
        woken = f"; its {started} it now"
    show.answer(answer, as_json=as_json, text=lambda: f"{show.line(name)} now has {text}{woken}.")


def what_runs(runner: Mapping[str, Any]) -> str:
    """Return a short description of the program, model or address that a runner uses."""
    if error := runner.get("error"):
        return str(error)
    match runner.get("kind"):
        case "model":
            return f"{runner['model']} at {runner['base_url']}"
        case "http":
            return str(runner["url"])
        case _:
            return " ".join(runner.get("argv") or [runner.get("recipe", "")])


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"the file {file} is not readable text", value=str(file), remedy="save the file as UTF-8 text"
        ) from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"--env {name!r} has no value", value=name, remedy="use the form NAME=VALUE")
    return name, value
