"""Options of several commands, and the functions that read their values."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from postroom.contracts.clock import DURATIONS, MAX_DURATION, duration_text, parse_duration
from postroom.contracts.errors import InvalidArgument, InvalidPath
from postroom.contracts.numbers import read_number


def completed(kind: str) -> Callable[[Any, str], list[tuple[str, str]]]:
    """Return a shell completion function for values of a kind, such as "runs"."""

    def complete(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
        from postroom.cli import completion

        return completion.KINDS[kind](ctx, incomplete)

    return complete


HERE: Final = "."
_MAX_SHOWN: Final = 40
"""Maximum characters of a duration in an error."""
AGENT_SETTING: Final = "postroom.agent"
"""The Git setting that names the default agent of a repository."""
_PROJECT_OF_AGENT: Final = "postroom.project_of_agent"


def _split_agent(ctx: typer.Context, given: str | None) -> str | None:
    name, _, project = (given or "").partition("@")
    if name and project:
        ctx.meta[_PROJECT_OF_AGENT] = project
        return name
    return given


def _project_of_agent(ctx: typer.Context, given: str) -> str:
    return str(ctx.meta.get(_PROJECT_OF_AGENT, given)) if given == HERE else given


Project = Annotated[
    str,
    typer.Option(
        "--project",
        "-p",
        metavar="PATH|SLUG",
        help="The project.",
        show_default="the current folder",
        autocompletion=completed("projects"),
        callback=_project_of_agent,
    ),
]
OneProject = Annotated[
    str | None,
    typer.Option(
        "--project",
        "-p",
        metavar="PATH|SLUG",
        help="Only this project.",
        show_default="every project",
        autocompletion=completed("projects"),
    ),
]


def agent_of_folder() -> str:
    """Return the default agent of the current Git repository (`git config postroom.agent`), or ""."""
    import subprocess

    try:
        command = ("git", "config", "--get", AGENT_SETTING)
        done = subprocess.run(command, capture_output=True, timeout=5, check=False)  # noqa: S603 - fixed words
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip()


def _required_agent(ctx: typer.Context, given: str | None) -> str | None:
    name = _split_agent(ctx, given or agent_of_folder())
    if not name and not ctx.resilient_parsing:
        ctx.fail(
            "Missing option '--as'. Name the agent, set POSTROOM_AGENT, or in a Git repository run "
            "`postroom init --as NAME`."
        )
    return name


_ACTING: Final = {
    "metavar": "NAME[@PROJECT]",
    "help": "The agent to act as.",
    "envvar": "POSTROOM_AGENT",
    "is_eager": True,  # read this before the project, because the agent may name the project
    "autocompletion": completed("agents"),
}
Acting = Annotated[
    str,
    typer.Option(
        "--as",
        default_factory=str,
        callback=_required_agent,
        show_default=f"git config {AGENT_SETTING}",
        **_ACTING,
    ),
]
ActingOrNone = Annotated[str | None, typer.Option("--as", callback=_split_agent, **_ACTING)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        help="Idempotency key: calls with the same key take effect only once.",
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(case_sensitive=False, help="The minimum level of the events that are logged."),
]
LogFormat = Annotated[
    Literal["console", "json"] | None, typer.Option(case_sensitive=False, help="The log format.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="The folder with the database and the token.",
        show_default=False,
        readable=False,  # typer would report another user's folder as wrong usage
    ),
]


def numbered(kind: str, least: int = 1) -> Callable[[str], int]:
    """Return a parser for numbers of at least `least`, such as 12 or task-12 for the kind `task`."""

    def parse(text: str) -> int:
        number = read_number(text, kind)
        if number is None or number < least:
            raise typer.BadParameter(f"{text!r} is not the number of a {kind}: write 12 or {kind}-12")
        return number

    return parse


Ttl = Annotated[
    int | None,
    typer.Option(
        "--ttl",
        parser=lambda text: int(seconds(text, unit="s", option="--ttl")),
        metavar="TIME",
        help="A duration, such as 30m. A number without a unit is in seconds.",
    ),
]


def project_key(text: str) -> str:
    """Return the key of a project, given a path or a slug; a path becomes absolute.

    A text with a slash, a leading dot or a leading tilde is a path.

    Raises:
        InvalidPath: The current folder does not exist.
    """
    if Path(text).is_absolute() or not (text.startswith((".", "~")) or set(text) & {"/", os.sep}):
        return text
    try:
        return os.path.abspath(Path(text).expanduser())  # noqa: PTH100 - resolve() would follow links
    except (OSError, RuntimeError) as error:
        raise InvalidPath(f"{text!r} cannot be made an absolute path: {error}", value=text) from error


def seconds(text: str, *, unit: str = "", option: str = "", most: timedelta = MAX_DURATION) -> float:
    """Convert a duration such as 90d to a number of seconds. A number without a unit is a number of `unit`.

    Raises:
        InvalidArgument: The text is not a duration, or the duration is longer than `most`. The error names
            the option.
    """
    where = f"{option}: " if option else ""
    duration = parse_duration(f"{text}{unit}" if text.isdecimal() else text)
    if duration is None:
        raise InvalidArgument(
            f"{where}{text[:_MAX_SHOWN]!r} is not a duration",
            value=text[:_MAX_SHOWN],
            remedy=f"write a number followed by a unit: {DURATIONS}",
        )
    if duration > most:
        raise InvalidArgument(
            f"{where}{text[:_MAX_SHOWN]!r} is too long for a duration",
            value=text[:_MAX_SHOWN],
            remedy=f"use a duration of at most {duration_text(most)}",
        )
    total = duration.total_seconds()
    return int(total) if total.is_integer() else total
