"""`postroom hook claude wait`: in an idle session it waits for mail, and only then ends with 2."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.running import RunningServer, soon
from machine import PATIENCE

pytestmark = pytest.mark.long

PROJECT = "/srv/harbour"
WAITS = [sys.executable, "-m", "postroom", "hook", "claude", "wait"]
LINE = 'postroom: 1 unread message for "Bo"; newest from "Ada"'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of each test's own: what one leaves unread would wake the next."""
    with RunningServer(tmp_path / "data") as running:
        yield running


@contextmanager
def waiting(data: Path, event: str = "SessionStart", **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a waiting hook, as the client does, and end it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    surroundings = {**kept, "POSTROOM_DATA_DIR": str(data), "POSTROOM_AGENT": "Bo", **more}
    sent = {"session_id": "s", "cwd": PROJECT, "hook_event_name": event}
    with subprocess.Popen(
        WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=surroundings
    ) as one:
        assert one.stdin is not None
        one.stdin.write(json.dumps(sent).encode())
        one.stdin.close()
        one.stdin = None
        try:
            yield one
        finally:
            one.kill()


def ended(one: subprocess.Popen[bytes]) -> tuple[int, str]:
    out, err = one.communicate(timeout=PATIENCE)
    assert out == b""
    return one.returncode, err.decode()


def first_over(*processes: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    return soon(lambda: next((one for one in processes if one.poll() is not None), None), "one of them ends")


@contextmanager
def furnished(server: RunningServer) -> Iterator[Any]:
    with server.line() as line:
        line.crew(PROJECT, "Ada", "Bo")
        yield line


def send(line: Any) -> None:
    words = {"sender_name": "Ada", "to": ["Bo"], "subject": "Quay", "body_md": "Hello."}
    line.tool("send_message", project_key=PROJECT, **words)


def test_each_message_wakes_once(server: RunningServer) -> None:
    with furnished(server) as line:
        for event in ("SessionStart", "Stop"):
            with waiting(server.data_dir, event) as one:
                send(line)
                code, told = ended(one)
                assert (code, LINE in told) == (2, True)
            over = json.dumps({"session_id": "s", "cwd": PROJECT, "agent": "Bo"}).encode()
            assert line.request("POST", "/hooks/claude/Stop", body=over).json()["outcome"] == "silent"


def test_a_session_that_is_nobody_and_a_run_of_the_server_are_not_waited_for(server: RunningServer) -> None:
    with furnished(server) as line:
        send(line)
        for more in ({"POSTROOM_AGENT": ""}, {"POSTROOM_AGENT": "Nobody"}, {"POSTROOM_RUN": "1"}):
            with waiting(server.data_dir, **more) as one:
                assert ended(one) == (0, "")


def test_no_process_waits_behind_a_session_without_a_person(tmp_path: Path) -> None:
    """The client waits for its hooks before it exits. No server answers here: an attended one would wait."""
    for more in ({"CLAUDE_CODE_SESSION_ATTENDED": "0"}, {}):
        with waiting(tmp_path, CLAUDE_CODE_ENTRYPOINT="sdk-cli", **more) as one:
            assert ended(one) == (0, "")


def test_of_two_behind_one_session_one_gives_way(server: RunningServer) -> None:
    with (
        furnished(server) as line,
        waiting(server.data_dir) as one,
        waiting(server.data_dir, "Stop") as other,
    ):
        over = first_over(one, other)
        left = other if over is one else one
        assert ended(over) == (0, "")
        send(line)
        assert ended(left)[0] == 2


def test_a_server_that_is_away_is_waited_for_from_the_start_alone(server: RunningServer) -> None:
    with furnished(server) as line:
        send(line)
    server.stop()
    with waiting(server.data_dir, "Stop") as at_the_end:
        assert ended(at_the_end) == (0, "")
    with waiting(server.data_dir) as from_the_start:
        server.start()
        assert ended(from_the_start)[0] == 2


def test_a_client_that_is_gone_is_told_nothing(tmp_path: Path) -> None:
    """The client's end of the hook's output is a socket, as with Node."""
    ours, theirs = socket.socketpair()
    surroundings = {**os.environ, "POSTROOM_DATA_DIR": str(tmp_path), "POSTROOM_AGENT": "Bo"}
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE, stderr=theirs.fileno(), env=surroundings) as one:
        theirs.close()
        assert one.stdin is not None
        one.stdin.write(json.dumps({"session_id": "s", "hook_event_name": "SessionStart"}).encode())
        one.stdin.close()
        ours.close()
        assert one.wait(60) == 0


def test_bad_input_never_wakes(tmp_path: Path) -> None:
    around = {**os.environ, "POSTROOM_DATA_DIR": str(tmp_path)}
    for given in (b"", b"{", b"null", b"[]"):
        done = subprocess.run(
            WAITS, input=given, capture_output=True, env=around, timeout=PATIENCE, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
