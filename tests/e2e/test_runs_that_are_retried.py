"""A run whose model cannot be reached: each command that shows runs names the error and the next attempt."""

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.commands import run_here
from e2e.running import RunningServer, plain_environment, soon

Postroom = Callable[..., subprocess.CompletedProcess[str]]
ERROR = "the model's endpoint cannot be reached"
pytestmark = pytest.mark.long


@pytest.fixture
def postroom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Postroom]:
    """Runs commands in a folder of a real server that has a chat channel."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "chat.token").touch(mode=0o600)
    (data / "chat.token").write_text("sixteen characters or more")
    (data / "gateway.toml").write_text(
        "[agent]\nbase_url = 'http://127.0.0.1:9/v1'\nmodel = 'm'\n[platforms.web]\ntoken_file = 'chat.token'\n"
    )
    (tmp_path / "yard").mkdir()
    monkeypatch.chdir(tmp_path / "yard")
    environment = {**plain_environment(tmp_path), "POSTROOM_DATA_DIR": str(data), "COLUMNS": "80"}
    with RunningServer(data):
        yield lambda *words: run_here(*words, environment=environment)


def test_every_command_that_shows_a_retried_run_names_its_last_error_and_the_next_attempt(
    postroom: Postroom,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    for name in ("Ada", "Bo"):
        assert postroom("agents", "register", name).returncode == 0
    set_runner = ("agents", "set-runner", "Bo", "--kind", "model", "--base-url", endpoint, "--model", "m")
    assert postroom(*set_runner).returncode == 0
    assert "retried" not in postroom("gateway", "status").stdout
    assert "retries" not in postroom("doctor").stdout
    assert postroom("mail", "send", "--as", "Ada", "--to", "Bo", "-s", "Hi", "Hello").returncode == 0

    pattern = r"\tqueued\t.*\t[2-9]\d* failed attempts, next at \d{4}-\S+Z: provider failed: "
    soon(lambda: re.search(pattern + ERROR, postroom("runs", "list").stdout), "the run has failed twice")
    [run] = json.loads(postroom("runs", "list", "--json").stdout)["runs"]
    assert ERROR in run["last_error"]
    assert ERROR in postroom("runs", "show", run["run_id"]).stdout
    assert ERROR in postroom("runs", "why", run["run_id"]).stdout
    lines = postroom("gateway", "status").stdout.splitlines()
    [at] = [number for number, line in enumerate(lines) if "retried" in line]
    assert lines[at].startswith("retried after a failure: 1 run; its next attempt is ")
    assert lines[at + 1].startswith("  Bo@")
    assert ERROR in lines[at + 1]
    report = postroom("doctor")
    assert report.returncode == 1
    [line] = [line for line in report.stdout.splitlines() if " retries: " in line]
    assert ERROR in line
