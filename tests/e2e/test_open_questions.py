"""Messages to an ACP agent that waits for a person, through `kill -9`: each has its own answer, once, on both engines."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from e2e.running import Line, RunningServer, soon
from e2e.test_runners import declared, processes_of

T = TypeVar("T")
AGENT = Path(__file__).parents[1] / "executors" / "fake_acp_agent.py"
WORDS = """
import re
note = Path(OPTIONS['memory'], session + '.mark')
if found := re.findall('MARK[0-9]', prompt): note.write_text(found[-1])
call = {'toolCallId': f'c{os.getpid()}', 'title': 'Remove', 'rawInput': {'path': 'old'}}
allowed = may(call) if note.read_text() == 'MARK0' else 'unasked'
say(f'{allowed}: {note.read_text()}')
"""
SENT = (
    ("Ada", "MARK0"),
    ("Ben", "MARK1"),
    ("Cyd", "MARK2"),
    ("Ada", "MARK3"),
    ("Ben", "MARK4"),
    ("Cyd", "MARK5"),
)
pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running
    assert processes_of(tmp_path / "data") == []


def crew(line: Line, folder: Path) -> None:
    """Register those who write, and Bo, who is run by the fake agent and asks before it answers MARK0."""
    line.crew(str(folder), "Ada", "Ben", "Cyd", "Bo")
    options = {"loads": True, "memory": str(folder)}
    argv = [sys.executable, "-I", "-S", str(AGENT), WORDS, json.dumps(options)]
    answer = declared(line, {"project": str(folder), "agent": "Bo", "runner": {"kind": "acp", "argv": argv}})
    assert answer.status == 200


def send(line: Line, folder: Path, sender: str, mark: str) -> str:
    """Send a message on a new thread, and return the thread."""
    sent = line.tool(
        "send_message", project_key=str(folder), sender_name=sender, to=["Bo"], subject=mark, body_md=mark
    )
    return str(sent["deliveries"][0]["payload"]["thread_id"])


def inbox(line: Line, folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = line.tool("fetch_inbox", project_key=str(folder), agent_name=name, after=0)
    return found


def runs(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = line.request("GET", "/admin/runs").json()
    return found


def questions(line: Line) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = line.request("GET", "/admin/questions").json()["questions"]
    return found


def test_an_open_question_and_five_messages_of_three_senders_are_six_answers_through_a_kill(
    server: RunningServer, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    folder.mkdir()
    with server.line() as line:
        crew(line, folder)
        threads = {"MARK0": send(line, folder, *SENT[0])}
        [asked] = soon(lambda: questions(line))
        threads |= {mark: send(line, folder, sender, mark) for sender, mark in SENT[1:]}
    server.kill()
    server.start()
    with server.line() as line:
        assert questions(line) == [asked]
        waiting = runs(line)["waiting"]
        assert [one["why"] for one in waiting] == [f"Bo has an open question: {asked['question']}"] * 5
        yes = json.dumps({"number": asked["number"], "answer": "yes"}).encode()
        taken = line.request(
            "POST", "/admin/questions", body=yes, headers={"Content-Type": "application/json"}
        )
        assert taken.status == 200
    server.kill()
    server.start()
    with server.line() as line:

        def is_over() -> bool:
            found = runs(line)
            return not found["waiting"] and [one["state"] for one in found["runs"]] == ["done"] * len(SENT)

        assert soon(is_over), runs(line)
        answers = [
            (name, one["body_md"], one["thread_id"])
            for name in ("Ada", "Ben", "Cyd")
            for one in inbox(line, folder, name)
            if "MARK" in one["body_md"]
        ]
        assert questions(line) == []
    expected = [
        (sender, f"{'yes' if mark == 'MARK0' else 'unasked'}: {mark}", threads[mark]) for sender, mark in SENT
    ]
    assert Counter(answers) == Counter(expected)
    assert "Traceback" not in server.log()
