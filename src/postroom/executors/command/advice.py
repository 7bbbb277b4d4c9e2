"""What to do when a client fails: which client it is, in which version, what was expected and found."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from postroom.contracts.runners import Recipe, Runner

_VERSION: Final = re.compile(r"\d+\.\d+(?:\.\d+)*\S*")
_PATIENCE: Final = 10
"""Seconds that a client has to tell its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    title: str
    program: str
    package: str
    log_in: str
    trust: str
    output: str
    """What its output is expected to hold."""

    @property
    def install(self) -> str:
        return f"npm install -g {self.package}@latest"


_CLIENTS: Final[Mapping[Recipe, _Client]] = {
    Recipe.CLAUDE: _Client(
        title="Claude Code",
        program="claude",
        package="@anthropic-ai/claude-code",
        log_in="claude auth login",
        trust="claude",
        output="a line of type `result`",
    ),
    Recipe.CODEX: _Client(
        title="Codex",
        program="codex",
        package="@openai/codex",
        log_in="codex login",
        trust="codex exec --skip-git-repo-check",
        output="an `item.completed` with an `agent_message`",
    ),
    Recipe.GEMINI: _Client(
        title="Gemini CLI",
        program="gemini",
        package="@google/gemini-cli",
        log_in="gemini",
        trust="gemini --skip-trust",
        output="an object with a `response`",
    ),
    Recipe.OPENCODE: _Client(
        title="opencode",
        program="opencode",
        package="opencode-ai",
        log_in="opencode auth login",
        trust="opencode",
        output="lines of type `text` and `step_finish`",
    ),
    Recipe.COPILOT: _Client(
        title="Copilot CLI",
        program="copilot",
        package="@github/copilot",
        log_in="copilot login",
        trust="copilot --trust-folder",
        output="a line of type `assistant.message`",
    ),
    Recipe.CLINE: _Client(
        title="Cline",
        program="cline",
        package="cline",
        log_in="cline auth",
        trust="cline",
        output="a line of type `run_result`",
    ),
}
_UNTRUSTED: Final = re.compile(r"trusted (directory|folder|workspace)|not trusted|untrusted", re.IGNORECASE)
_LOGGED_OUT: Final = re.compile(
    r"not logged in|/login|log in|\blogin\b|api[ _-]?key|auth method|authenticat|unauthorized|\b401\b"
    r"|missing environment variable",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(
    r"(unknown (option|argument)|unexpected argument|unrecognized option)[^\n]*", re.IGNORECASE
)


def advice(runner: Runner, environment: Mapping[str, str], words: str, *, kinds: str | None = None) -> str:
    """Return what to add to the reason of a failed run; empty where the program is not known. Blocks.

    `words` are the program's own, `kinds` the types of the lines that it put out where none was known.
    """
    client = _CLIENTS.get(runner.recipe)
    if client is None:
        return ""
    who = f"{client.title} {_version(client, runner, environment)}"
    if kinds is not None:
        found = f"expected {client.output}, found {kinds}"
        return f" [{who}: {found}; its format may have changed: `{client.install}`, or a newer postroom]"
    if option := _OPTION.search(words):
        found = f"expected a release that knows each option, found: {option[0].strip()}"
        return f" [{who}: {found}; `{client.install}`]"
    if _UNTRUSTED.search(words):
        return f" [{who}: expected a trusted folder, found {runner.cwd} untrusted; `{client.trust}`]"
    if _LOGGED_OUT.search(words):
        found = "expected to be logged in or to have a key, found neither accepted"
        return f" [{who}: {found}; run `{client.log_in}`, or pass its key on by pass_env]"
    return f" [{who}]"


def how_to_install(runner: Runner) -> str:
    """Return what to add where a client could not be started."""
    client = _CLIENTS.get(runner.recipe)
    if client is None:
        return ""
    return f" [expected {client.title} as `{client.program}`; install it: `{client.install}`]"


def _version(client: _Client, runner: Runner, environment: Mapping[str, str]) -> str:
    """Return the version as the client tells it; a command of the user's own is not asked."""
    program = runner.argv[0] if runner.argv else client.program
    if PurePath(program).name != client.program:
        return "of a version that is not known"
    try:
        told = subprocess.run(  # noqa: S603 - the client that has just been run
            [program, "--version"],
            cwd=runner.cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "of a version that it does not tell"
    found = _VERSION.search(told.stdout.decode("utf-8", "replace"))
    return found[0] if found else "of a version that it does not tell"
