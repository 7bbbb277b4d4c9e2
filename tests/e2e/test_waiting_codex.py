"""The process that a hook of Codex starts for an idle session queues a turn, once, and ends with the client."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from e2e.running import RunningServer, soon
from e2e.test_waiting_hook import LINE, PROJECT, furnished, send

pytestmark = pytest.mark.long

HOOK = [sys.executable, "-m", "postroom", "hook", "codex"]
CODEX = """#!/bin/sh
if [ "$1" = queue ]; then
    printf '%s\\n' "$@" > "$QUEUED.new"; mv "$QUEUED.new" "$QUEUED"
    exit "$FAILS"
fi
"$PYTHON" -m postroom hook codex SessionStart < "$GIVEN"
read -r _
"""
"""A Codex that has started a session, and ends with its input."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of each test's own: what one leaves unread would wake the next."""
    with RunningServer(tmp_path / "data") as running:
        yield running


def surroundings(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    own = {
        "POSTROOM_DATA_DIR": str(tmp_path / "data"),
        "POSTROOM_AGENT": "Bo",
        "PATH": f"{tmp_path / 'bin'}:{kept['PATH']}",
        "PYTHON": sys.executable,
        "QUEUED": str(tmp_path / "queued"),
        "GIVEN": str(tmp_path / "given"),
        "FAILS": "0",
    }
    return {**kept, **own, **more}


@contextmanager
def session(tmp_path: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a Codex, and end it."""
    program = tmp_path / "bin" / "codex"
    program.parent.mkdir()
    program.write_text(CODEX)
    program.chmod(0o755)
    given = {"session_id": "s", "cwd": PROJECT, "hook_event_name": "SessionStart"}
    (tmp_path / "given").write_text(json.dumps(given))
    words, around = [str(program)], surroundings(tmp_path, **more)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=around) as one:
        try:
            yield one
        finally:
            one.kill()


def left_behind(tmp_path: Path) -> list[psutil.Process]:
    """Return the processes that hooks have left and that wait."""
    found = []
    for one in psutil.process_iter():
        try:
            is_ours = one.cmdline()[1:] == [*HOOK[1:], "SessionStart"]
            if is_ours and one.environ().get("POSTROOM_DATA_DIR") == str(tmp_path / "data"):
                found += [one] if os.getsid(one.pid) == one.pid else []
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def waiter(tmp_path: Path) -> psutil.Process:
    return soon(lambda: left_behind(tmp_path), "something waits")[0]


def prompted(tmp_path: Path, prompt: str) -> bytes:
    """Return what the hook says to a prompt of the session."""
    sent = json.dumps({"session_id": "s", "cwd": PROJECT, "prompt": prompt}).encode()
    words = [*HOOK, "UserPromptSubmit"]
    return subprocess.run(
        words, input=sent, capture_output=True, env=surroundings(tmp_path), timeout=60, check=True
    ).stdout


def test_mail_queues_a_turn_whose_prompt_confirms_it(server: RunningServer, tmp_path: Path) -> None:
    with furnished(server) as line, session(tmp_path):
        one = waiter(tmp_path)
        send(line)
        one.wait(60)
        words = (tmp_path / "queued").read_text().splitlines()
        assert words[:2] == ["queue", "--thread=s"]
        told = words[2].removeprefix("--message=")
        assert told.startswith(LINE)
        assert prompted(tmp_path, told) == b""  # the prompt says it
        assert prompted(tmp_path, "Good morning.") == b""
        over = json.dumps({"session_id": "s", "cwd": PROJECT, "agent": "Bo"}).encode()
        assert line.request("POST", "/hooks/codex/Stop", body=over).json()["outcome"] == "silent"


def test_what_cannot_be_queued_is_told_by_the_next_hook(server: RunningServer, tmp_path: Path) -> None:
    with furnished(server) as line, session(tmp_path, FAILS="1"):
        one = waiter(tmp_path)
        send(line)
        one.wait(60)
        assert "1 unread message" in prompted(tmp_path, "Good morning.").decode()


def test_it_ends_when_codex_is_killed(server: RunningServer, tmp_path: Path) -> None:
    with furnished(server), session(tmp_path) as codex:
        one = waiter(tmp_path)
        codex.kill()
        codex.wait()
        one.wait(60)
    assert not (tmp_path / "queued").exists()
