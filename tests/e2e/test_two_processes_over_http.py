"""Two processes, each with a real MCP client, that meet in one server: what each saw, and the stored data."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.running import RunningServer, plain_environment
from machine import PATIENCE

pytestmark = pytest.mark.long

PEER = Path(__file__).with_name("peer.py")
WAITED_FOR = 0.04
"""Seconds that Nagle's algorithm together with late acknowledgements makes every call take at least."""


def play(server: RunningServer, project: str, home: Path, **clients: str) -> dict[str, Any]:
    """Run Ada and Ben concurrently and return what each saw."""
    running = {
        role: subprocess.Popen(
            [sys.executable, str(PEER), role, f"{server.url}/mcp", server.token, client, project],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=plain_environment(home),
        )
        for role, client in clients.items()
    }
    seen: dict[str, Any] = {}
    try:
        for role, process in running.items():
            said, complained = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, complained.decode()[-3_000:]
            seen[role] = json.loads(said)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.communicate()
    return seen


def test_two_processes_write_answer_acknowledge_reserve_and_search(
    server: RunningServer, tmp_path: Path
) -> None:
    seen = play(server, "/yard/two", tmp_path, Ada="2026", Ben="fastmcp")
    check_both_sides(seen["Ada"], seen["Ben"])
    server.await_archive()
    check_archive(server, "yard-two", asked=seen["Ada"]["asked"], replied=seen["Ben"]["replied"])
    assert "Traceback" not in server.log()


def check_both_sides(ada: dict[str, Any], ben: dict[str, Any]) -> None:
    question, answer = ben["question"], ada["answer"]
    assert (question["id"], question["from"], question["to"]) == (ada["asked"], "Ada", ["Ben"])
    assert (question["subject"], question["body_md"]) == ("The lighthouse", "Is the *lamp* lit?")
    assert (question["seq"], question["ack_required"], question["read_at"]) == (1, True, None)
    assert (answer["id"], answer["from"], answer["reply_to"]) == (ben["replied"], "Ben", question["id"])
    assert (answer["subject"], answer["thread_id"]) == ("Re: The lighthouse", question["thread_id"])
    assert ada["status"]["recipients"][0]["acked_at"] == ben["marked"]["acknowledged_at"]
    assert [one["path"] for one in ada["reserved"]] == ["src/harbor/**"]
    assert [holder["agent"] for one in ben["conflicts"] for holder in one["holders"]] == ["Ada"]
    assert ben["found"] == [answer["id"], question["id"]]
    assert [one["id"] for one in ada["released"]] == [one["id"] for one in ada["reserved"]]


def check_archive(server: RunningServer, slug: str, *, asked: int, replied: int) -> None:
    """The repository holds both messages, both profiles, both reservations and the thread; Git finds no fault."""
    paths = git(server, slug, "ls-tree", "-r", "--name-only", "main").splitlines()
    messages = [path for path in paths if path.startswith("messages/")]
    assert [Path(path).name for path in messages] == [
        f"{asked}-the-lighthouse.md",
        f"{replied}-re-the-lighthouse.md",
    ]
    question = git(server, slug, "show", f"main:{messages[0]}")
    head, _, body = question.removeprefix("---\n").partition("\n---\n\n")
    fields = {name: json.loads(text) for name, text in (row.split(": ", 1) for row in head.splitlines())}
    assert body == "Is the *lamp* lit?"
    assert (fields["id"], fields["from"], fields["to"], fields["ack_required"]) == (
        asked,
        "Ada",
        ["Ben"],
        True,
    )
    assert {"agents/Ada/profile.json", "agents/Ben/profile.json"} <= set(paths)
    held = [
        json.loads(git(server, slug, "show", f"main:{path}")) for path in paths if "reservations/" in path
    ]
    assert {(one["agent"], one["pattern"], bool(one["released_at"])) for one in held} == {
        ("Ada", "src/harbor/**", True),
        ("Ben", "src/harbor/lamp.py", False),
    }
    digest = git(server, slug, "show", f"main:threads/{fields['thread']}.md")
    assert digest.index(f"#{asked}") < digest.index(f"#{replied}")
    assert git(server, slug, "fsck", "--strict", "--no-dangling") == ""


def git(server: RunningServer, slug: str, *words: str) -> str:
    done = subprocess.run(
        ["git", "--git-dir", str(server.repository(slug)), *words],
        capture_output=True,
        check=True,
        timeout=20,
    )
    return done.stdout.decode()


def test_an_answer_is_sent_at_once_and_does_not_wait_for_an_acknowledgement(server: RunningServer) -> None:
    took = []
    with server.line() as line:
        line.tool("health_check")
        for _ in range(41):
            began = time.perf_counter()
            line.tool("health_check")
            took.append(time.perf_counter() - began)
    assert min(took) < WAITED_FOR / 2
