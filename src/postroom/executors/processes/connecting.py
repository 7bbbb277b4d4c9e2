"""The connection of each client to our server for one run, by arguments and variables of that run.

The user's own settings are neither written nor extended. The token is in the environment; arguments and files
name its variable.
"""

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from postroom import jsonc
from postroom.contracts.clients import CLIENT_HEADER
from postroom.contracts.executor import (
    FOLDER_VARIABLE,
    PATH_VARIABLE,
    STDIO,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    RunAccess,
)
from postroom.contracts.runners import Recipe

NAME: Final = "postroom"
"""The name under which setup writes our server, so that a client has it once."""
_OPENCODE: Final = "OPENCODE_CONFIG_CONTENT"
_CLINE: Final = "CLINE_MCP_SETTINGS_PATH"
_PLUGIN: Final = Path(__file__).with_name("opencode_steering.js").as_uri()
_GEMINI: Final = "GEMINI_CLI_HOME"
_GEMINI_WRITES: Final = (
    "GEMINI.md",
    "gemini-credentials.json",
    "google_accounts.json",
    "installation_id",
    "mcp-oauth-tokens.json",
    "oauth_creds.json",
)
"""Files that Gemini CLI writes by name: even through a dangling link it would reach the user's folder."""


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The connection of a client: arguments, variables, and the content of the run's private folder."""

    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    links: Mapping[str, Path] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Create the private folder again from nothing, readable by its owner only, with the files and links.

        Blocks.
        """
        shutil.rmtree(folder, ignore_errors=True)  # links in it are removed, not followed
        folder.mkdir(mode=0o700)
        for name in (*self.files, *self.links):
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_private(folder / name, content)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)


NO_CONNECTION: Final = Connection()
Connecting = Callable[[RunAccess, Mapping[str, str], Path], Connection]
"""Makes the connection of a client, from its environment and the path of its future private folder."""


def _claude(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    # Set up as a plugin it has our tools twice, and those of the plugin do not know the run.
    twice = f"mcp__plugin_{NAME}_{NAME}"
    return Connection(
        words=(
            f"--mcp-config={_servers(access, Recipe.CLAUDE, alwaysLoad=True)}",  # else it defers them
            f"--allowedTools=mcp__{NAME}",
            f"--disallowedTools={twice}",
        ),
        variables={
            "MCP_CONNECTION_NONBLOCKING": "0"
        },  # else it begins without our tools where the server is slow
    )


def _copilot(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    return Connection(words=(f"--additional-mcp-config={_servers(access, Recipe.COPILOT, tools=['*'])}",))


def _servers(access: RunAccess, recipe: Recipe, **more: object) -> str:
    headers = _headers(f"${{{TOKEN_VARIABLE}}}", recipe)
    server = {"type": "http", "url": access.mcp_url, "headers": headers, **more}
    return json.dumps({"mcpServers": {NAME: server}})


def _codex(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    """Connect it in the form of the user's own entry: it merges the two, and refuses a mixture."""
    path = Path(environment.get("CODEX_HOME") or Path(environment.get("HOME", "~"), ".codex"))
    if "command" in _codex_entry(path / "config.toml"):
        told: dict[str, object] = {
            "command": sys.executable,
            "args": list(STDIO),
            "env_vars": [URL_VARIABLE, PATH_VARIABLE, FOLDER_VARIABLE, TOKEN_VARIABLE],
        }
    else:
        told = {"url": access.mcp_url, "bearer_token_env_var": TOKEN_VARIABLE}
        told[f"http_headers.{CLIENT_HEADER}"] = Recipe.CODEX.value
    told["default_tools_approval_mode"] = "approve"
    told["omit_tools_from"] = ["deferred"]  # else its model has to search for our tools
    told["required"] = True  # else it begins without our tools while the server still loads what speaks MCP
    words = [
        word for name, value in told.items() for word in ("-c", f"mcp_servers.{NAME}.{name}={_toml(value)}")
    ]
    return Connection(words=tuple(words))


def _codex_entry(path: Path) -> Mapping[str, Any]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))["mcp_servers"][NAME]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _gemini(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    """Connect it by a home folder for the run: links to the user's files, and settings with our server.

    It accepts system settings only from root, and no servers from arguments.
    """
    home = Path(environment.get(_GEMINI) or environment.get("HOME") or Path.home()).absolute()
    settings = _object_at(home / ".gemini" / "settings.json")
    if settings is None:
        return NO_CONNECTION  # the client itself reports the problem in them
    servers = settings.get("mcpServers")
    headers = _headers(f"${TOKEN_VARIABLE}", Recipe.GEMINI)
    server = {"httpUrl": access.mcp_url, "headers": headers, "trust": True}
    settings["mcpServers"] = {**(servers if isinstance(servers, dict) else {}), NAME: server}
    return Connection(
        variables={_GEMINI: str(folder)},
        files={".gemini/settings.json": json.dumps(settings).encode()},
        links=dict(_gemini_links(home)),
    )


def _gemini_links(home: Path) -> Iterator[tuple[str, Path]]:
    own = home / ".gemini"
    entries = {*_GEMINI_WRITES, "tmp", "history"}
    with suppress(OSError):
        for name in ("tmp", "history"):  # it creates no folder behind a dangling link
            (own / name).mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        entries |= {path.name for path in own.iterdir()}
    for name in sorted(entries - {"settings.json"}):
        yield f".gemini/{name}", own / name
    for name in (".agents", ".env"):
        if (home / name).exists():
            yield name, home / name


def _opencode(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    settings = _opencode_settings(environment)
    servers = settings.get("mcp")
    header = _headers(f"{{env:{TOKEN_VARIABLE}}}", Recipe.OPENCODE)
    server = {"type": "remote", "url": access.mcp_url, "enabled": True, "oauth": False, "headers": header}
    settings["mcp"] = {**(servers if isinstance(servers, dict) else {}), NAME: server}
    return Connection(variables={_OPENCODE: json.dumps(settings)})


def _cline(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    """Connect it by a copy of its list of servers; the program that it starts has the run's variables."""
    home = Path(environment.get("CLINE_DIR") or Path(environment.get("HOME", "~"), ".cline"))
    data = Path(environment.get("CLINE_DATA_DIR") or home / "data")
    settings = _object_at(Path(environment.get(_CLINE) or data / "settings" / "cline_mcp_settings.json"))
    if settings is None:
        return NO_CONNECTION
    servers = settings.get("mcpServers")
    server = {"command": sys.executable, "args": list(STDIO)}
    settings["mcpServers"] = {**(servers if isinstance(servers, dict) else {}), NAME: server}
    name = "cline_mcp_settings.json"
    return Connection(variables={_CLINE: str(folder / name)}, files={name: json.dumps(settings).encode()})


def opencode_plugin(environment: Mapping[str, str], socket: str) -> Mapping[str, str]:
    """Return the variables with which opencode loads our plugin, which gets messages at `socket`."""
    settings = _opencode_settings(environment)
    plugins = settings.get("plugin")
    others = [one for one in plugins if one != _PLUGIN] if isinstance(plugins, list) else []
    settings["plugin"] = [*others, _PLUGIN]
    return {_OPENCODE: json.dumps(settings), "POSTROOM_STEERING": socket}


def _opencode_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        settings = json.loads(environment.get(_OPENCODE) or "{}")
    except ValueError:
        settings = {}
    return settings if isinstance(settings, dict) else {}


CONNECTING: Final[Mapping[Recipe, Connecting]] = {
    Recipe.CLAUDE: _claude,
    Recipe.CODEX: _codex,
    Recipe.GEMINI: _gemini,
    Recipe.OPENCODE: _opencode,
    Recipe.COPILOT: _copilot,
    Recipe.CLINE: _cline,
}


def _headers(token: str, recipe: Recipe) -> dict[str, str]:
    """Return the headers that authenticate the run and name the client, for answers in its format."""
    return {"Authorization": f"Bearer {token}", CLIENT_HEADER: recipe.value}


def _object_at(path: Path) -> dict[str, Any] | None:
    """Return the settings in a file, empty without a file; None if it contains anything else."""
    try:
        read = jsonc.read(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    found = {} if read is None else read.value()
    return found if isinstance(found, dict) else None


def _toml(value: object) -> str:
    """Return texts, lists of texts and booleans in TOML, which are the same in JSON."""
    return json.dumps(value, ensure_ascii=True)
