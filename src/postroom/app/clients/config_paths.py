"""The paths of a client's files on this machine, and whether the client is installed."""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from postroom.app import places
from postroom.app.clients import json_edit
from postroom.app.clients.config_edits import ConfigEdit
from postroom.app.clients.files import look
from postroom.app.clients.table import CLIENTS, MARKET, Client, ConfigPath, OwnFile, Scope
from postroom.contracts.client_programs import NAME
from postroom.contracts.errors import ClientFileRefused, InvalidArgument
from postroom.executors.processes.asking import asked
from postroom.jsonc import NotJson

_FOLDERS: Final = frozenset(client.user.variable for client in CLIENTS if client.user.variable)
"""The environment variables with which a user moves the folder of a client."""
PROJECT_CLIENTS: Final = tuple(client.name for client in CLIENTS if client.project is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupScope:
    """The scope in which a client is set up: all projects of a user, or one project."""

    environment: Mapping[str, str]
    scope: Scope = "user"
    project: Path = field(default_factory=Path.cwd)
    platform: str = sys.platform
    silent: set[str] = field(default_factory=set)
    """The programs that did not answer in time, and are therefore not asked again."""
    versions: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The exit code and output of `--version`, for each program that was asked."""
    is_dry_run: bool = False
    """Whether nothing may be written to the user's folders, not even by a client program."""

    def ask(self, *words: str) -> tuple[int, str]:
        """Run a client program, and return the program's exit code and output.

        In a dry run, the program runs with an empty temporary home folder.
        """
        if not self.is_dry_run:
            return asked(self.environment, *words, silent=self.silent)
        by_name = {
            name: value
            for name, value in self.environment.items()
            if name not in _FOLDERS and not name.startswith("XDG_")
        }
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            return asked({**by_name, "HOME": home}, *words, silent=self.silent)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The path of a configuration file, and the folder that must contain the file."""

    path: Path
    base: Path


def servers_file(client: Client, target: SetupScope) -> ConfigFile:
    """Return the file that lists a client's MCP servers.

    Raises:
        InvalidArgument: The client has no such file for this scope.
    """
    if target.scope == "user":
        return config_file(client.user, target)
    if client.project is None:
        raise InvalidArgument(
            f"{client.title} has no configuration for a single project",
            value=client.name,
            remedy=f"leave out --scope project; these clients support it: {', '.join(PROJECT_CLIENTS)}",
        )
    return config_file(client.project, target)


def hooks_file(client: Client, target: SetupScope) -> ConfigFile | None:
    """Return the file that lists a client's hooks, or None if the client has no hooks."""
    if client.hooks is None:
        return None
    return config_file(client.hooks.user if target.scope == "user" else client.hooks.project, target)


def own_files(client: Client, target: SetupScope) -> list[tuple[OwnFile, ConfigFile]]:
    """Return the files of a client that only postroom writes."""
    items = [
        (own_file, own_file.user if target.scope == "user" else own_file.project)
        for own_file in client.own_files
    ]
    return [(own_file, config_file(path, target)) for own_file, path in items if path is not None]


def switch(client: Client, target: SetupScope) -> tuple[ConfigFile, list[ConfigEdit]] | None:
    """Return the file that enables a client's plugin, and the edits; return None without a plugin."""
    if client.switched_on_in is None:
        return None
    folder = places.machine_dir(target.environment) / MARKET
    return config_file(client.switched_on_in, target), client.switch_edits(folder)


def config_file(config_path: ConfigPath, target: SetupScope) -> ConfigFile:
    """Return the file on this machine for a path from the table of clients."""
    named = target.environment.get(config_path.variable, "") if config_path.variable else ""
    if named:
        base = folder = places.absolute(named, target.environment)
    else:
        home = places.home(target.environment)
        if config_path.base == "project":
            base = target.project
        elif config_path.base == "machine":
            base = places.machine_dir(target.environment)
        elif config_path.base == "settings" and target.platform == "darwin":
            base = home / "Library" / "Application Support"
        elif config_path.base in ("xdg", "settings"):
            chosen = Path(target.environment.get("XDG_CONFIG_HOME", ""))
            base = chosen if chosen.is_absolute() else home / ".config"
        else:
            base = home
        folder = base / config_path.folder
    candidates = [folder / name for name in config_path.names]
    return ConfigFile(
        next((candidate for candidate in candidates if candidate.exists()), candidates[0]), base
    )


def is_installed(client: Client, target: SetupScope) -> bool:
    """Return whether the folder or the program of a client exists on this machine."""
    if client.newer_than:
        servers = servers_file(client, target)
        try:
            return json_edit.find(look(servers.path, servers.base).text, client.path) is not None
        except (ClientFileRefused, NotJson):
            return False
    path = target.environment.get("PATH")
    if any(config_file(config_path, target).path.exists() for config_path in client.folders):
        return True
    return any(shutil.which(program, path=path) for program in client.programs)


def chosen(names: list[str], target: SetupScope) -> list[Client]:
    """Return the clients with the given names, or the installed clients if `names` is empty.

    Raises:
        InvalidArgument: There is no client with this name.
    """
    by_name = {client.name: client for client in CLIENTS}
    for name in names:
        if name not in by_name:
            raise InvalidArgument(
                f"unknown client {name!r}", value=name, remedy=f"use one of {', '.join(by_name)}"
            )
    if names:
        return [by_name[name] for name in dict.fromkeys(names)]
    fits = [client for client in CLIENTS if target.scope == "user" or client.project is not None]
    clients = [client for client in fits if is_installed(client, target)]
    older = {client.newer_than for client in clients}
    return [client for client in clients if client.name not in older]


def command_path(environment: Mapping[str, str]) -> str | None:
    """Return the path of the command `postroom` on the PATH, or None if the PATH has no such command."""
    return shutil.which(NAME, path=environment.get("PATH"))
