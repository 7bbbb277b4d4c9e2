"""Asks a client program whether it can be set up, and which steps its user must take.

If the client is missing or too old, the set-up would have no effect or break the client. Therefore, an error
is raised before anything is written. A missing log-in or an untrusted folder is reported after the files have
been written.
"""

import json
import re
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from postroom.app.clients.config_paths import SetupScope, config_file, servers_file
from postroom.app.clients.table import Client
from postroom.app.clients.trust import account
from postroom.contracts.client_programs import CLAUDE, CODEX, NAME, ClientProgram
from postroom.contracts.errors import ClientUnfit
from postroom.executors.processes.asking import asked, shown, version_in

_NOWHERE: Final = {"POSTROOM_URL": "http://127.0.0.1:9"}
"""Environment variables for a client that lists its servers.

To list its servers, the client starts postroom's MCP server, which must not find a running server.
"""
_HELD_BACK: Final = re.compile(r"pending approval|disabled", re.IGNORECASE)
_SHOWN: Final = 200
_TRIED: Final = json.loads(Path(__file__).with_name("tried.json").read_text(encoding="utf-8"))
"""The release of each client with which all tests with real clients last passed, and the date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The installed release and the tested release of a client."""

    installed: str
    """The installed version, or "" if the client does not report it."""
    tried: str
    tried_on: str
    """The date of the tests, as YYYY-MM-DD."""
    warning: str = ""
    """Why the installed release may not work, or "" for the tested release."""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDo:
    """A step that the user of a client must take before the written files take effect."""

    kind: Literal["logged_out", "folder_untrusted", "client_unknown"]
    detail: str
    remedy: str


def refuse_unfit(client: Client, target: SetupScope, *, hooks: bool) -> list[ToDo]:
    """Check that a client is installed and supports the planned configuration.

    If the client reports no version, return the step that the user must take.

    Raises:
        ClientUnfit: The client is missing or too old. Nothing was written.
    """
    if target.scope == "user":
        folders = [config_file(folder, target).path for folder in client.folders]
        known_paths = [*folders, servers_file(client, target).path] if client.programs or folders else []
        if known_paths and not _program(client, target) and not any(path.exists() for path in known_paths):
            expected = [f"`{name}` on the PATH" for name in client.programs] + [
                f"{folder}" for folder in folders
            ]
            raise ClientUnfit(
                f"{client.title} is not installed: expected {' or '.join(expected)}, found neither",
                value=client.name,
                remedy=f"`{client.asks.install}`" if client.asks else f"install {client.title}",
            )
    made, program = client.asks, _program(client, target)
    if made is None or program is None or not (hooks and made.oldest):
        return []
    version, unclear = _version(made, program, target)
    if unclear is not None:
        return [unclear]
    if _numbers(version) < _numbers(made.oldest):
        raise ClientUnfit(
            f"{client.title} {version} is too old: expected {made.oldest} or newer, found {version}; "
            f"{made.why_oldest}",
            value=version,
            remedy=f"`{made.install}`, or set up the client with --no-hooks",
        )
    return []


def to_do(client: Client, target: SetupScope) -> list[ToDo]:
    """Return the steps that the user of a client must take after `setup` has written the files.

    Return no steps if this is a dry run or the client does not answer.
    """
    if target.is_dry_run:
        return []
    made, program = client.asks, _program(client, target)
    if made is None or program is None or program in target.silent:  # this has been reported already
        return []
    to_dos = [_login(made, program, target)]
    if made.lists_servers and program not in target.silent:
        if target.scope == "project":
            folder: ToDo | None
            words = (program, "mcp", "list")
            code, text = asked(
                {**target.environment, **_NOWHERE}, *words, cwd=target.project, silent=target.silent
            )
            if code != 0:
                folder = _unknown(
                    made, f"a list in the output of `{made.program} mcp list`", shown(code, text)
                )
            else:
                lines = [line.strip() for line in text.splitlines() if re.match(rf"\W*{NAME}\b", line)]
                folder = None
                if all(_HELD_BACK.search(line) for line in lines):
                    value = repr(lines[0][:_SHOWN]) if lines else "no such line"
                    folder = ToDo(
                        kind="folder_untrusted",
                        detail="written, folder not trusted: expected that "
                        f"`{made.program} mcp list` names {NAME} in {target.project}, found {value}",
                        remedy=f"start `{made.program}` in that folder, and let it trust the folder and "
                        "the server",
                    )
            to_dos.append(folder)
        elif not made.oldest:  # other clients have been asked before, or will be asked about the log-in
            to_dos.append(_version(made, program, target)[1])
    return [to_do for to_do in to_dos if to_do is not None]


def find_release(client: Client, target: SetupScope) -> Release | None:
    """Return the installed release of a client, or None if the program is missing or was never tested."""
    made, program = client.asks, _program(client, target)
    if made is None or program is None:
        return None
    installed, unclear = _version(made, program, target)
    release = Release(installed=installed, tried=_TRIED["releases"][made.package], tried_on=_TRIED["date"])
    if unclear is not None:
        return replace(release, warning=unclear.detail, remedy=unclear.remedy)
    if _numbers(installed) == _numbers(release.tried):
        return release
    is_newer = _numbers(installed) > _numbers(release.tried)
    install = f"`npm install -g {made.package}@{release.tried}` installs the release that was tested"
    return replace(
        release,
        warning=(
            f"{made.title} {installed} was not tested with this release of postroom: it is "
            f"{'newer' if is_newer else 'older'} than {release.tried}, which was tested on "
            f"{release.tried_on}"
        ),
        remedy=f"update postroom; if a tool or a hook fails, {install}" if is_newer else install,
    )


def _program(client: Client, target: SetupScope) -> str | None:
    path = target.environment.get("PATH")
    return next(
        (executable for name in client.programs if (executable := shutil.which(name, path=path))), None
    )


def _numbers(version: str) -> list[int]:
    return [int(item) for item in re.findall(r"\d+", version)[:3]]


def _version(made: ClientProgram, program: str, target: SetupScope) -> tuple[str, ToDo | None]:
    if program not in target.versions:
        target.versions[program] = target.ask(program, "--version")
    code, text = target.versions[program]
    if version := version_in(text) if code == 0 else "":
        return version, None
    return "", _unknown(made, f"a version from `{made.program} --version`", shown(code, text))


def _unknown(made: ClientProgram, expected: str, found: str) -> ToDo:
    return ToDo(
        kind="client_unknown",
        detail=f"{made.title}: expected {expected}, found {found}",
        remedy=f"check that `{made.program}` starts; run `{made.install}`, or update postroom",
    )


def _login(made: ClientProgram, program: str, target: SetupScope) -> ToDo | None:
    environment = target.environment
    if made is CLAUDE:
        is_in, expected, text = _login_of_claude(program, target)
    elif made is CODEX and not environment.get("CODEX_API_KEY"):
        is_in, expected, text = account(program, target)
    else:
        return None
    if is_in is None:
        return _unknown(made, expected, text) if expected else None
    if is_in:
        return None
    detail = f"written, logged out: {made.title} reports that it has neither a login nor a key"
    return ToDo(
        kind="logged_out", detail=detail, remedy=f"run `{made.log_in}`, or configure the client's API key"
    )


def _login_of_claude(program: str, target: SetupScope) -> tuple[bool | None, str, str]:
    ask = partial(asked, target.environment, program, silent=target.silent)
    code, text = ask("auth", "status", "--help")
    if "auth status" not in text:
        if code == 0 and "usage:" in text.lower():  # an older release takes the question for a prompt
            return None, "", ""
        return (
            None,
            "a command to check the login in the output of `claude auth status --help`",
            shown(code, text),
        )
    code, text = ask("auth", "status")
    expected = "`loggedIn` in the output of `claude auth status`"
    try:
        document = json.loads(text)["loggedIn"]
    except (ValueError, KeyError, TypeError):
        document = None
    return (document if isinstance(document, bool) else None), expected, shown(code, text)
