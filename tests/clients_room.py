"""A home folder with clients in it, and what setup does there."""

import shutil
import sys
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
from postroom.cli.main import main

ADDRESS = "http://127.0.0.1:8765/mcp"
NOW = 1_795_000_000_000
BY_NAME = {one.name: one for one in CLIENTS}


@dataclass
class Room:
    """A separate home; the records are outside of it, so that the home contains clients' files only."""

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
                client, self.target, way or "stdio", address, tools=tools, hooks=hooks, extras=extras
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
        """Return the state of a client."""
        return status_of(BY_NAME[name], self.target, address, self.records)

    def drifts(self, name: str, *, address: str = ADDRESS) -> list[str]:
        """Return the faults of a client, each as a word."""
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


@dataclass
class Homes:
    """Homes in which `postroom setup` runs, each with the command on its path, and nothing else but what a test puts."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def new(self, *, path: str = "") -> Path:
        """Return an empty home that the environment names from now on; a project `harbour` is in it."""
        home = self.folder / str(len(list(self.folder.iterdir()))) / "home"
        (home / "harbour").mkdir(parents=True)
        for name in (*FOLDERS_OF_CLIENTS, "POSTROOM_URL", "POSTROOM_DATA_DIR"):
            self.monkeypatch.delenv(name, raising=False)
        self.monkeypatch.setenv("HOME", str(home))
        self.monkeypatch.setenv("PATH", f"{home.with_name('bin')}{path}")
        self.monkeypatch.setattr(sys, "platform", "linux")
        self.monkeypatch.chdir(home)
        put_program(home, "postroom", "")
        return home

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run `postroom setup`; return its exit code and what it printed."""
        code = main(["setup", *words])
        said = self.capsys.readouterr()
        return code, said.out, said.err


FOLDERS_OF_CLIENTS = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME")
FOLDERS_OF_CLIENTS += ("CODEX_API_KEY",)


def put_program(home: Path, name: str, lines: str) -> None:
    """Put a shell script on the path of a home."""
    file = home.with_name("bin") / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{lines}\n")
    file.chmod(0o755)


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Homes:
    (tmp_path / "homes").mkdir()
    return Homes(tmp_path / "homes", monkeypatch, capsys)
