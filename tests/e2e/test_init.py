"""`postroom init` and `postroom whoami` in a Git repository, with a real server that `init` starts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.running import plain_environment
from machine import PATIENCE
from postroom.app import places

pytestmark = pytest.mark.long

Postroom = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Git repository of a person who uses Cursor."""
    (tmp_path / "home/.cursor").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", tmp_path / "harbour"], check=True)
    return tmp_path / "harbour"


@pytest.fixture
def postroom(folder: Path) -> Iterator[Postroom]:
    home = folder.parent / "home"
    programs = f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    data = home / "data"
    environment = {
        **plain_environment(home),
        "PATH": programs,
        "POSTROOM_DATA_DIR": str(data),
        "POSTROOM_PORT": "0",
    }

    def run(*words: str, path: str = programs, stdin: int | None = None) -> subprocess.CompletedProcess[str]:
        command, given = [sys.executable, "-m", "postroom", *words], {**environment, "PATH": path}
        return subprocess.run(
            command, cwd=folder, env=given, stdin=stdin, capture_output=True, text=True, check=False
        )

    yield run
    if note := places.read_server_note(data):
        server = psutil.Process(note.pid)
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE)


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_init_asks_before_it_changes_anything(postroom: Postroom, folder: Path) -> None:
    keyboard, terminal = os.openpty()
    os.write(keyboard, b"\x04")  # Ctrl-D at the question
    done = postroom("init", "--as", "Ada", stdin=terminal)
    os.close(terminal)
    os.close(keyboard)
    assert (done.returncode, "AGENTS.md? [y/N]" in done.stderr) == (1, True)
    home = folder.parent / "home"
    assert sorted(path.name for path in home.rglob("*") if path.is_file()) == []
    assert not (folder / "AGENTS.md").exists()


def test_init_starts_the_server_connects_the_clients_and_makes_an_agent_the_default_of_a_repository(
    folder: Path, postroom: Postroom
) -> None:
    nobody = postroom("mail", "inbox")
    assert (nobody.returncode, "postroom init --as NAME" in nobody.stderr) == (2, True)

    planned = document(postroom("init", "--as", "Ada", "--rules", "--dry-run", "--json"))
    assert (planned["server"]["runs"], planned["dry_run"]) == (False, True)
    assert not (folder / "AGENTS.md").exists()
    assert not (folder.parent / "home/.cursor/mcp.json").exists()

    done = document(postroom("init", "--as", "Ada", "--rules", "--json"))
    assert (done["server"]["started"], done["agent"], done["default"]) == (True, "Ada", True)
    assert [(one["client"], one["trial"]["state"]) for one in done["clients"]] == [("cursor", "answered")]
    assert "file_reservation_paths" in (folder / "AGENTS.md").read_text(encoding="utf-8")

    again = document(postroom("init", "--json"))
    assert (again["server"]["started"], again["agent"]) == (False, "Ada")
    assert again["rules"] == str(folder / "AGENTS.md")
    assert {one["change"] for client in again["clients"] for one in client["files"]} == {"none"}

    who = document(postroom("whoami", "--json"))
    assert (who["agent"], who["named_by"], who["registered"]) == ("Ada", "git config postroom.agent", True)
    assert postroom("mail", "send", "--to", "Ada", "-s", "Lights", "On?").returncode == 0
    assert "Lights" in postroom("mail", "inbox").stdout


def test_whoami_says_what_to_do_if_no_agent_is_chosen_or_it_is_not_registered(
    folder: Path, postroom: Postroom
) -> None:
    assert "No agent is chosen in this folder." in postroom("whoami").stdout
    assert postroom("init", "--no-rules").returncode == 0
    subprocess.run(["git", "-C", folder, "config", "postroom.agent", "Nobody"], check=True)
    said = postroom("whoami").stdout
    assert "not registered" in said
    assert "postroom agents register Nobody" in said


def test_init_without_git_registers_the_agent_and_says_how_to_act_as_it(
    folder: Path, postroom: Postroom
) -> None:
    empty = folder.parent / "programs"
    empty.mkdir()
    (empty / "postroom").symlink_to(Path(sys.executable).parent / "postroom")
    done = postroom("init", "--as", "Ada", "--no-rules", "--json", path=str(empty))
    assert (document(done)["agent"], document(done)["default"]) == ("Ada", False)
    said = postroom("init", "--as", "Ada", "--dry-run", "--json", path=str(empty))
    assert document(said)["default"] is False


def test_a_name_that_is_refused_leaves_no_project(folder: Path, postroom: Postroom) -> None:
    assert postroom("init", "--no-rules").returncode == 0
    (folder.parent / "inner").mkdir()
    for words in (
        ("init", "--as", "Bad Name", "--dry-run"),
        ("agents", "register", "Bad Name", "-p", "../inner"),
    ):
        done = postroom(*words)
        assert (done.returncode, "Bad Name" in done.stderr) == (2, True)
    assert "inner" not in postroom("projects", "list").stdout
