"""Where on this machine a client's files are, and whether the client is installed."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from postroom.app import places
from postroom.app.clients import json_edit
from postroom.app.clients.files import look
from postroom.app.clients.jsonc import NotJson
from postroom.app.clients.table import CLIENTS, Client, Scope, Spot
from postroom.app.clients.wants import NAME
from postroom.contracts.errors import ClientFileRefused, InvalidArgument

PROJECT_CLIENTS: Final = tuple(one.name for one in CLIENTS if one.project is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """For whom clients are set up: this user, or the project in a folder."""

    environment: Mapping[str, str]
    scope: Scope = "user"
    project: Path = field(default_factory=Path.cwd)
    platform: str = sys.platform


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and the folder that it must not lead out of."""

    path: Path
    base: Path


def servers_place(client: Client, scene: Scene) -> Place:
    """Return the file in which a client's servers stand.

    Raises:
        InvalidArgument: the client has none for the scope.
    """
    if scene.scope == "user":
        return place(client.user, scene)
    if client.project is None:
        raise InvalidArgument(
            f"{client.title} has no configuration of a project",
            value=client.name,
            remedy=f"leave --scope project away; it is known of {', '.join(PROJECT_CLIENTS)}",
        )
    return place(client.project, scene)


def hooks_place(client: Client, scene: Scene) -> Place | None:
    """Return the file in which a client's hooks stand; None for a client without."""
    if client.hooks is None:
        return None
    return place(client.hooks.user if scene.scope == "user" else client.hooks.project, scene)


def place(spot: Spot, scene: Scene) -> Place:
    """Return where a spot of the table is on this machine."""
    named = scene.environment.get(spot.variable, "") if spot.variable else ""
    base = places.absolute(named, scene.environment) if named else _base(spot, scene)
    folder = base if named else base / spot.folder
    candidates = [folder / name for name in spot.names]
    return Place(next((one for one in candidates if one.exists()), candidates[0]), base)


def _base(spot: Spot, scene: Scene) -> Path:
    home = places.home(scene.environment)
    if spot.base == "project":
        return scene.project
    if spot.base == "xdg" or (spot.base == "settings" and scene.platform not in ("darwin", "win32")):
        return _named(scene.environment, "XDG_CONFIG_HOME", home / ".config")
    if spot.base == "settings" and scene.platform == "darwin":
        return home / "Library" / "Application Support"
    if spot.base == "settings":
        return _named(scene.environment, "APPDATA", home / "AppData" / "Roaming")
    return home


def _named(environment: Mapping[str, str], name: str, default: Path) -> Path:
    chosen = Path(environment.get(name, ""))
    return chosen if chosen.is_absolute() else default


def is_installed(client: Client, scene: Scene) -> bool:
    """Return whether the client's folder or program is on this machine."""
    if client.known_by:
        return _stands_in(client, scene)
    path = scene.environment.get("PATH")
    if any(place(spot, scene).path.exists() for spot in client.folders):
        return True
    return any(shutil.which(program, path=path) for program in client.programs)


def _stands_in(client: Client, scene: Scene) -> bool:
    found = servers_place(client, scene)
    try:
        return json_edit.find(look(found.path, found.base).text, client.known_by) is not None
    except (ClientFileRefused, NotJson):
        return False


def chosen(names: list[str], scene: Scene) -> list[Client]:
    """Return the clients that are named, or without names those that are installed.

    Raises:
        InvalidArgument: a name is of no client.
    """
    known = {one.name: one for one in CLIENTS}
    for name in names:
        if name not in known:
            raise InvalidArgument(
                f"no client is called {name!r}", value=name, remedy=f"known are {', '.join(known)}"
            )
    if names:
        return [known[name] for name in dict.fromkeys(names)]
    fits = [one for one in CLIENTS if scene.scope == "user" or one.project is not None]
    found = [one for one in fits if is_installed(one, scene)]
    special = {one.user for one in found if one.known_by}
    return [one for one in found if one.known_by or one.user not in special]


def command_path(environment: Mapping[str, str]) -> str | None:
    """Return where the command `postroom` is found on the path; None when it is not."""
    return shutil.which(NAME, path=environment.get("PATH"))
