"""A home folder with clients in it, and what setup does there."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import get_args

import pytest

from postroom.app.clients.config_edits import Records
from postroom.app.clients.config_paths import SetupScope
from postroom.app.clients.setting_up import Change, parts, plan, plan_removal, steadily
from postroom.app.clients.status import ClientStatus, status_of
from postroom.app.clients.table import CLIENTS, Client, Extra, Tools, Way

ADDRESS = "http://127.0.0.1:8765/mcp"
NOW = 1_795_000_000_000
BY_NAME = {one.name: one for one in CLIENTS}


@dataclass
class Room:
    """A home of its own; the records lie beside it, so that a look at the home sees clients' files only."""

    home: Path
    scope: str = "user"
    more: dict[str, str] = field(default_factory=dict)
    now: int = NOW

    @property
    def environment(self) -> dict[str, str]:
        data = self.home.with_name(f"{self.home.name}-data")
        return {"HOME": str(self.home), "XDG_DATA_HOME": str(data), "PATH": "/nowhere", **self.more}

    @property
    def target(self) -> SetupScope:
        return SetupScope(
            environment=self.environment,
            scope="user" if self.scope == "user" else "project",
            project=self.home / "harbour",
            platform="linux",
        )

    @property
    def records(self) -> Records:
        return Records(self.environment)

    def set_up(
        self,
        name: str,
        way: Way | None = None,
        *,
        tools: Tools = "core",
        hooks: bool = True,
        extras: tuple[Extra, ...] = (),
        address: str = ADDRESS,
    ) -> list[Change]:
        """Set a client up, as the command does."""
        client = BY_NAME[name]
        records = self.records
        self.now += 1000
        with records.kept():
            wanted = parts(
                client, self.target, way or client.way, address, tools=tools, hooks=hooks, extras=extras
            )
            return steadily(lambda: plan(client, wanted, records), records, self.now)

    def take_out(self, name: str) -> list[Change]:
        """Take a client's part out, as the command does."""
        client = BY_NAME[name]
        records = self.records
        with records.kept():
            wanted = parts(
                client,
                self.target,
                "http" if client.http else "stdio",
                "",
                hooks=True,
                extras=get_args(Extra),
            )
            return steadily(lambda: plan_removal(client, wanted, records), records, self.now)

    def status_of(self, name: str, *, address: str = ADDRESS) -> ClientStatus:
        """Say how a client stands."""
        return status_of(BY_NAME[name], self.target, address, self.records)

    def drifts(self, name: str, *, address: str = ADDRESS) -> list[str]:
        """Return what is wrong with a client, each in a word."""
        return [one.drift for one in self.status_of(name, address=address).findings]

    def client(self, name: str) -> Client:
        return BY_NAME[name]

    def write(self, name: str, text: str) -> Path:
        """Write a file of the home, in exactly these bytes."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def read(self, name: str) -> str:
        return (self.home / name).read_bytes().decode()

    def fill(self, tree: Path) -> None:
        """Make the home a copy of a tree, which may be missing: then it is empty."""
        for path, _ in files_of(self.home):
            (self.home / path).unlink()
        if tree.exists():
            shutil.copytree(tree, self.home, dirs_exist_ok=True)

    def tree(self, *, backups: bool = True) -> dict[str, bytes | None]:
        """Return everything below the home: files with their bytes, folders without."""
        found = dict(files_of(self.home))
        found |= {one.relative_to(self.home).as_posix(): None for one in self.home.rglob("*") if one.is_dir()}
        return {name: one for name, one in found.items() if backups or ".postroom-backup-" not in name}


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files below a folder with their bytes."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


Rooms = Callable[[], Room]


def rooms_below(folder: Path) -> Rooms:
    """Return what makes a room with an empty home, each time another."""
    numbers = count()

    def made() -> Room:
        home = folder / str(next(numbers)) / "home"
        home.mkdir(parents=True)
        return Room(home)

    return made


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    return rooms_below(tmp_path)


@pytest.fixture
def room(rooms: Rooms) -> Room:
    return rooms()
