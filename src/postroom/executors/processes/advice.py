"""Advice for failures of a client: the client, its version, and what was expected and found."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from postroom.contracts.client_programs import ClientProgram
from postroom.contracts.errors import CommandError, CommandNotStarted
from postroom.contracts.runners import Runner
from postroom.executors.processes.asking import asked, version_in

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
    """The version as reported in its output; else the program is asked for it."""
    expected: str = ""
    found: str = ""
    """The output found instead, if its format is different."""


def advised(
    error: CommandError,
    program: ClientProgram,
    runner: Runner,
    command: str,
    environment: Mapping[str, str],
    said: LastWords,
) -> CommandError:
    """Return a failure of a runner's client with advice. Blocks.

    `command` is the program that was started, with this environment.
    """
    if isinstance(error, CommandNotStarted):
        if error.value != command:  # it is the folder
            return error
        more = f"expected {program.title} as `{program.program}`; install it: `{program.install}`"
    else:
        version = said.version or _version(program, runner, command, environment)
        more = f"{program.title} {version}{_what_helps(program, runner, said)}"
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
