"""Paths on this machine: the data folder, the configuration file, the token and the server's note.

This module needs only the standard library, because the stdio proxy and the hooks import it, and must stay
small. The proxy and the hooks read no configuration file, so only the environment tells them the data folder
(`data_dir`).
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from postroom.contracts.errors import ConfigError, why_unreadable
from postroom.rights import denied

PREFIX: Final = "POSTROOM_"
CONFIG_NAME: Final = "POSTROOM_CONFIG"
DATA_DIR_NAME: Final = "POSTROOM_DATA_DIR"
CLIENT_NAMES: Final = (
    "POSTROOM_AGENT",
    "POSTROOM_AGENT_TOKEN",
    "POSTROOM_CONFIG",
    "POSTROOM_GUARD",
    "POSTROOM_STALE",
    "POSTROOM_TOKEN",
    "POSTROOM_URL",
)
"""The variables with postroom's prefix that only clients read, and not the server."""
RUN_NAMES: Final = (
    "POSTROOM_DISPATCH",
    "POSTROOM_OUTBOX",
    "POSTROOM_PROJECT",
    "POSTROOM_RUN",
    "POSTROOM_STEERING",
    "POSTROOM_THREAD",
)
"""The variables that a server sets for the program of a run, and does not read itself."""

_LARGEST_NOTE: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNote:
    """The address and process id of a running server, for clients on the same machine."""

    url: str
    pid: int
    version: str
    started_at: int
    """When the server started, in milliseconds since the epoch."""
    mcp_path: str = "/mcp"


def environment() -> Mapping[str, str]:
    """Return the environment variables of this process."""
    return os.environ


def data_dir(environment: Mapping[str, str], *, platform: str = sys.platform) -> Path:
    """Return the absolute path of the data folder; the folder need not exist."""
    if chosen := environment.get(DATA_DIR_NAME):
        return absolute(chosen, environment)
    if platform == "darwin":
        return home(environment) / "Library" / "Application Support" / "postroom"
    return _base_folder(environment, "XDG_DATA_HOME", home(environment) / ".local" / "share")


def refuse_closed(folder: Path) -> None:
    """Raise an error if this user may not enter a data folder; the folder need not exist.

    Raises:
        ConfigError: The user may not enter the folder. The error names the owner and the remedy.
    """
    if (value := denied(folder, os.X_OK)) is not None:
        raise ConfigError(
            f"the data folder {folder} cannot be read: {value.why(folder)}",
            value=str(folder),
            remedy=value.remedy,
        )


def machine_dir(environment: Mapping[str, str], *, platform: str = sys.platform) -> Path:
    """Return the path of the folder that all servers of a user share; the folder need not exist."""
    by_name = {name: value for name, value in environment.items() if name != DATA_DIR_NAME}
    return data_dir(by_name, platform=platform) / "machine"


def config_file(environment: Mapping[str, str], *, platform: str = sys.platform) -> Path:
    """Return the absolute path of the configuration file; the file need not exist."""
    if chosen := environment.get(CONFIG_NAME):
        return absolute(chosen, environment)
    if platform == "darwin":
        return home(environment) / "Library" / "Application Support" / "postroom" / "config.toml"
    return _base_folder(environment, "XDG_CONFIG_HOME", home(environment) / ".config") / "config.toml"


def token_file(data_dir: Path) -> Path:
    """Return the path of the file with the server's token."""
    return data_dir / "token"


def agent_token_dir(data_dir: Path) -> Path:
    """Return the path of the folder for the tokens of agents that were set up on this machine."""
    return data_dir / "agent-tokens"


def programs_dir(data_dir: Path) -> Path:
    """Return the path of the folder that contains the private folders of runs."""
    return data_dir / "runs"


def server_note(data_dir: Path) -> Path:
    """Return the path of the file in which a running server states its address."""
    return data_dir / "server.json"


def write_server_note(data_dir: Path, note: ServerNote) -> None:
    """Write the server note atomically, readable only by this user.

    Raises:
        OSError: The folder cannot be created or written.
    """
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(server_note(data_dir), json.dumps(asdict(note)))


def write_private(target: Path, text: str) -> None:
    """Replace a file atomically with a file that only this user can read.

    Raises:
        OSError: The folder of the file is missing or not writable.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a Path cannot open a descriptor
            file.write(text)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def read_server_note(data_dir: Path) -> ServerNote | None:
    """Return the server note that the last server on this machine wrote, or None if there is no note.

    The server may have ended without removing the note.

    Raises:
        ConfigError: The user may not enter the folder, or the note is invalid.
    """
    refuse_closed(data_dir)
    target = server_note(data_dir)
    try:
        with target.open("rb") as file:
            text = file.read(_LARGEST_NOTE)
        document = json.loads(text)
        return ServerNote(
            url=str(document["url"]),
            pid=int(document["pid"]),
            version=str(document["version"]),
            started_at=int(document["started_at"]),
            mcp_path=str(document.get("mcp_path", "/mcp")),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{target} does not contain the address of a server: {why_unreadable(error)}",
            value=str(target),
            remedy="remove the file and start the server again with `postroom up`",
        ) from error


def remove_server_note(data_dir: Path, *, pid: int) -> None:
    """Remove the server note if the server with the process id `pid` has written the note."""
    note = read_server_note(data_dir)
    if note is not None and note.pid == pid:
        server_note(data_dir).unlink(missing_ok=True)


def home(environment: Mapping[str, str]) -> Path:
    """Return the user's home folder."""
    chosen = environment.get("HOME")
    return Path(chosen) if chosen else Path.home()


def absolute(text: str, environment: Mapping[str, str], *, base: Path | None = None) -> Path:
    """Convert a path to an absolute path without resolving symbolic links.

    `~` means the home folder. A relative path begins at `base`, or at the current folder by default.
    """
    if text == "~" or text.startswith("~/"):
        return home(environment) / text[2:]
    return Path(os.path.abspath((base or Path.cwd()) / text))  # noqa: PTH100 - resolve() would follow links


def _base_folder(environment: Mapping[str, str], name: str, default: Path) -> Path:
    chosen = environment.get(name, "")
    base = Path(chosen)
    # According to the XDG specification, a relative path in this variable must be ignored.
    return (base if base.is_absolute() else default) / "postroom"
