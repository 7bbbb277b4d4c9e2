"""An ACP agent of a real server: a message to it is answered by mail, a permission by a person."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from e2e.commands import run_here
from e2e.running import Line, RunningServer, plain_environment, soon
from e2e.test_runners import declared, processes_of, send
from executors.room import lives

T = TypeVar("T")
AGENT = Path(__file__).parents[1] / "executors" / "fake_acp_agent.py"
REMOVE = "{'toolCallId': 'c', 'title': 'Remove', 'kind': 'delete', 'rawInput': {'path': 'old'}}"
WORDS = f"say('I look. '); say('Removed: ' + may({REMOVE})) if 'remove it' in prompt or 'The answer is' in prompt else say('hi')"
pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running
    assert processes_of(tmp_path / "data") == []


def crew(line: Line, folder: Path, words: str) -> None:
    """Register Hal, and Bo, who is run by the fake agent."""
    line.crew(str(folder), "Hal", "Bo")
    options = {"loads": True, "memory": str(folder), "journal": str(folder / "heard")}
    argv = [sys.executable, "-I", "-S", str(AGENT), words, json.dumps(options)]
    asked = {"project": str(folder), "agent": "Bo", "runner": {"kind": "acp", "argv": argv}}
    answer = declared(line, asked)
    assert (answer.status, answer.json()["runner"]["kind"]) == (200, "acp")


def told(file: Path) -> str:
    """Return what a file says up to its end, a dot; nothing while it is being written."""
    text = file.read_text() if file.exists() else ""
    return text.removesuffix(".") if text.endswith(".") else ""


def test_a_message_is_answered_and_a_permission_is_given_by_a_person_through_a_restart(
    server: RunningServer, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    folder.mkdir()
    inbox = {"project_key": str(folder), "agent_name": "Hal", "after": 0}
    with server.line() as line:
        crew(line, folder, WORDS)
        first = send(line, folder, "Bo", "greet me")
        [answer] = soon(lambda: line.tool("fetch_inbox", **inbox))
        assert (answer["thread_id"], answer["body_md"]) == (first, "I look. hi")
        send(line, folder, "Bo", "remove it")
        [_, question] = soon(lambda: found if len(found := line.tool("fetch_inbox", **inbox)) > 1 else [])
        assert (
            'May the agent continue with "Remove" (delete)? The call: {"path": "old"}' in question["body_md"]
        )
    assert processes_of(server.data_dir) == []
    server.kill()
    server.start()
    with server.line() as line:
        [open_one] = line.request("GET", "/admin/questions").json()["questions"]
        yes = json.dumps({"number": open_one["number"], "answer": "yes"}).encode()
        taken = line.request(
            "POST", "/admin/questions", body=yes, headers={"Content-Type": "application/json"}
        )
        assert taken.status == 200
        messages: list[dict[str, Any]] = soon(
            lambda: found if len(found := line.tool("fetch_inbox", **inbox)) > 2 else []
        )
        assert messages[-1]["body_md"] == "I look. Removed: yes"
        assert messages[-1]["thread_id"] == question["thread_id"]
        assert line.request("GET", "/admin/questions").json()["questions"] == []
    methods = [json.loads(one).get("method") for one in (folder / "heard").read_text().splitlines()]
    assert [one for one in methods if one in ("session/new", "session/load")] == [
        "session/new",
        "session/new",
        "session/load",
    ]
    assert "Traceback" not in server.log()


def test_a_killed_server_leaves_no_agent_and_the_message_is_answered_once_by_the_next(
    server: RunningServer, tmp_path: Path
) -> None:
    """The agent hears neither the end of its input nor the wish to end, and neither does its child."""
    folder = tmp_path / "yard"
    folder.mkdir()
    words = f"""
begun, pids = Path({str(folder / "begun")!r}), Path({str(folder / "pids")!r})
if not begun.exists():
    begun.touch()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child: pids.write_text('%d %d.' % (os.getpid(), child))
    hang()
say('begun again')
"""
    inbox = {"project_key": str(folder), "agent_name": "Hal", "after": 0}
    with server.line() as line:
        crew(line, folder, words)
        send(line, folder, "Bo", "work")
    left = [int(pid) for pid in soon(lambda: told(folder / "pids")).split()]
    server.kill()
    assert soon(lambda: not any(map(lives, left)))
    server.start()
    with server.line() as line:
        messages = soon(lambda: line.tool("fetch_inbox", **inbox))
    assert [one["body_md"] for one in messages] == ["begun again"]
    assert processes_of(server.data_dir) == []


def test_an_acp_runner_is_declared_on_the_command_line_and_a_wrong_one_is_refused_with_its_remedy(
    server: RunningServer, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    folder.mkdir()
    with server.line() as line:
        line.tool("ensure_project", human_key=str(folder))
        line.tool("register_agent", project_key=str(folder), program="p", model="m", name="Bo")

    def agents(*words: str) -> tuple[int, str]:
        environment = {**plain_environment(tmp_path), "POSTROOM_DATA_DIR": str(server.data_dir)}
        done = run_here("agents", *words, "--project", str(folder), environment=environment)
        return done.returncode, done.stdout + done.stderr

    for words, why in (
        ((), "or a recipe that has a command: claude, codex, gemini, opencode"),
        (("--recipe", "gemini", "--prompt", "file"), "gets its prompt through the protocol"),
        (("--recipe", "cursor"), "'cursor' is unknown"),
        (("--recipe", "codex", "--model", "o3"), "the runner's model is refused: unknown field"),
    ):
        code, said = agents("set-runner", "Bo", "--kind", "acp", *words)
        assert (code, why in said) == (2, True), said
    assert agents("runners") == (0, "No agents with a runner.\n")
    code, said = agents("set-runner", "Bo", "--kind", "acp", "--recipe", "gemini", "--resume")
    assert (code, "Bo has a runner" in said) == (0, True), said
    assert agents("runners")[1].splitlines()[-1].split()[:3] == ["Bo", "acp", "gemini"]
