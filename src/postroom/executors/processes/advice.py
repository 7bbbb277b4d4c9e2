"""Advice for failures of a client: the client, its version, and what was expected and found."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from postroom.contracts import client_programs
from postroom.contracts.client_programs import ClientProgram
from postroom.contracts.errors import CommandError, CommandNotStarted
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import Recipe, Runner
from postroom.executors.processes.asking import asked, version_in

_PROGRAMS: Final[Mapping[Recipe, ClientProgram]] = {
    Recipe.CLAUDE: client_programs.CLAUDE,
    Recipe.CODEX: client_programs.CODEX,
    Recipe.GEMINI: client_programs.GEMINI,
    Recipe.OPENCODE: client_programs.OPENCODE,
    Recipe.COPILOT: client_programs.COPILOT,
    Recipe.CLINE: client_programs.CLINE,
}
_OVER_ACP: Final[Mapping[Recipe, ClientProgram]] = {
    Recipe.CLAUDE: client_programs.CLAUDE_ACP,
    Recipe.CODEX: client_programs.CODEX_ACP,
}
"""The programs that speak the protocol for a client that does not."""
_UNTRUSTED: Final = re.compile(r"trusted (directory|folder|workspace)|not trusted|untrusted", re.IGNORECASE)
_LOGGED_OUT: Final = re.compile(
    r"not logged in|/login|log(?:ged)? in|\blogin\b|api[ _-]?key|auth method|authenticat|unauthorized|\b401\b"
    r"|missing environment variable",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(
    r"(unknown (option|argument)|unexpected argument|unrecognized option)[^\n]*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """The last output of a failed program, and the expected output."""

    words: str = ""
    """The text of all its outputs."""
    version: str = ""
    """The version from the client's output; if empty, the client itself is asked."""
    expected: str = ""
    found: str = ""
    """The output found instead, if its format is different."""


def advised(
    error: CommandError, runner: Runner, command: str, environment: Mapping[str, str], said: LastWords
) -> CommandError:
    """Return a failure of a runner's client with advice; unchanged for an unknown client. Blocks.

    `command` is the program that was started, with this environment.
    """
    over_acp = runner.kind is RunnerKind.ACP
    client = (_OVER_ACP.get(runner.recipe) if over_acp else None) or _PROGRAMS.get(runner.recipe)
    if client is None:
        return error
    if isinstance(error, CommandNotStarted):
        if error.value != command:  # it is the folder
            return error
        more = f"expected {client.title} as `{client.program}`; install it: `{client.install}`"
    else:
        version = said.version or _version(client, runner, command, environment)
        more = f"{client.title} {version}{_what_helps(client, runner, said)}"
    return type(error)(f"{error.message} [{more}]", value=error.value, remedy=error.remedy)


def _what_helps(client: ClientProgram, runner: Runner, said: LastWords) -> str:
    if said.found:
        found = f"expected {said.expected}, found {said.found}"
        return f": {found}; its format may have changed: `{client.install}`, or a newer postroom"
    if option := _OPTION.search(said.words):
        return (
            f": expected a release that supports each option, found: {option[0].strip()}; `{client.install}`"
        )
    if _UNTRUSTED.search(said.words):
        return f": expected a trusted folder, found {runner.cwd} untrusted; `{client.trust}`"
    if _LOGGED_OUT.search(said.words):
        found = "expected a login or a valid key, found neither"
        return f": {found}; run `{client.log_in}`, or pass its key with pass_env"
    return ""


def _version(client: ClientProgram, runner: Runner, command: str, environment: Mapping[str, str]) -> str:
    """Return the version as the client reports it; a custom command is not asked."""
    if PurePath(command).name != client.program:
        return "of an unknown version"
    code, said = asked(environment, command, "--version", cwd=Path(runner.cwd))
    return (version_in(said) if code == 0 else "") or "of an unreported version"
