"""The demonstration, as a person runs it beside a server: it ends by itself and does what it says."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.running import RunningServer, plain_environment

pytestmark = pytest.mark.long

PATIENCE = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def demo(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroom", "demo", *words],
        env={**plain_environment(data.parent), "POSTROOM_DATA_DIR": str(data)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def git(folder: str, *words: str) -> str:
    return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return json.loads(done.stdout)


def test_two_programs_mend_a_bug_and_ask_before_they_finish(server: RunningServer) -> None:
    found = told(demo(server.data_dir, "--yes", "--json"))
    assert found["outcome"] == "committed"
    assert [one["from"] for one in found["messages"]] == ["Ada"] * 3
    assert git(found["folder"], "log", "--format=%s").splitlines() == [
        "Count the first price as well",
        "A basket, with a bug",
    ]
    assert git(found["folder"], "status", "--porcelain", "--untracked-files=no") == ""
    with server.line() as line:
        held = line.tool("list_file_reservations", project_key=found["folder"])
        assert held["reservations"] == []
        assert line.request("GET", "/admin/runners").json() == {"runners": []}
        page = line.request("GET", found["timeline"].removeprefix(server.url))
    assert page.status == 200
    assert 'aria-current="true">All</a>' in page.text
    for words in ("The total is wrong", "woke 1", "is done", "basket.py"):
        assert words in page.text
    assert "Traceback" not in server.log()


def test_no_takes_it_back(server: RunningServer) -> None:
    found = told(demo(server.data_dir, "--no", "--json"))
    assert found["outcome"] == "taken back"
    assert git(found["folder"], "status", "--porcelain", "--untracked-files=no") == ""
    assert git(found["folder"], "log", "--format=%s").splitlines() == ["A basket, with a bug"]


def test_without_a_terminal_it_goes_on_by_itself_and_says_what_to_look_at(server: RunningServer) -> None:
    done = demo(server.data_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert "You to Ada: yes" in done.stdout
    assert "Then it asks, and is told yes." in done.stdout
    assert "you are asked" not in done.stdout
    assert "timeline" in done.stdout
    assert "git -C" in done.stdout


def test_without_a_server_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = demo(tmp_path / "data")
    assert done.returncode == 75
    assert "postroom up" in done.stderr
    assert not (tmp_path / "data" / "demo").exists()
