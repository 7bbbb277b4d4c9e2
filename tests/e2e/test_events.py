"""A real server, real streams, real processes that follow: each event once, through kills and stops."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Cut, Line, RunningServer, lines_of, plain_environment
from machine import PATIENCE, Bound

pytestmark = pytest.mark.long

PLACE = "/yard/log"
STREAM = {"Accept": "text/event-stream"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        with running.line() as line:
            line.crew(PLACE, "Ada", "Ben")
        yield running


def send(server: RunningServer, subject: str = "A subject") -> None:
    message = {"to": ["Ben"], "subject": subject, "body_md": "A body", "idempotency_key": subject}
    with server.line() as line:
        line.tool("send_message", project_key=PLACE, sender_name="Ada", **message)


def listen(line: Line, after: int | None = None, **headers: str) -> None:
    cursor = "" if after is None else f"&after={after}"
    answer = line.request("GET", f"/v1/events?project_key={PLACE}{cursor}", headers={**STREAM, **headers})
    assert (answer.status, answer.is_stream) == (200, True), answer


def seqs(found: list[Any]) -> list[int]:
    return [one["seq"] for one in found]


def test_a_stream_is_resumed_after_a_kill_without_gap_or_double(server: RunningServer) -> None:
    seen: list[Any] = []
    with server.line() as line:
        listen(line, 0)
        seen += line.events(3)
        send(server, "before the kill")
        seen += line.events(1)
        server.kill()
        with pytest.raises((Cut, OSError)):
            line.events(1)
    server.start()
    send(server, "before the kill")  # asked again under its key
    send(server, "after it")
    with server.line() as line:
        listen(line, 0, **{"Last-Event-ID": str(seen[-1]["seq"])})
        seen += line.events(1)
        send(server, "while it listens")
        seen += line.events(1)
    assert seqs(seen) == [1, 2, 3, 4, 5, 6]
    assert [one["message_id"] for one in seen[3:]] == [1, 2, 3]
    assert "subject" not in json.dumps(seen)
    assert "Traceback" not in server.log()


def test_a_server_that_is_stopped_ends_its_streams_at_once(server: RunningServer) -> None:
    with server.line() as line:
        listen(line, 0)
        line.events(3)
        bound = Bound(5)
        assert server.stop() == 0
        assert not bound.has_passed()
        with pytest.raises((Cut, ValueError)):
            line.events(1)
    assert "Traceback" not in server.log()


class Follower:
    """A process of `postroom events --follow`, and the lines that it printed."""

    def __init__(self, data: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "postroom", "events", "--project", PLACE, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**plain_environment(data.parent), "POSTROOM_DATA_DIR": str(data)},
        )

    def end(self, signal_number: int | None = None) -> tuple[int, str]:
        if signal_number is not None:
            self.process.send_signal(signal_number)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


def test_the_command_follows_through_a_kill_with_each_number_once(server: RunningServer) -> None:
    follower = Follower(server.data_dir, "--follow", "--after", "0", "--json")
    assert seqs([json.loads(one) for one in lines_of(follower.process, 3)]) == [1, 2, 3]
    send(server, "one")
    assert json.loads(lines_of(follower.process, 1)[0])["kind"] == "message.sent"
    server.kill()
    server.start()
    send(server, "two")
    assert seqs([json.loads(one) for one in lines_of(follower.process, 1)]) == [5]
    code, said = follower.end(15)
    away, back = said.splitlines()
    assert (code, away.endswith("; waiting for the server"), back) == (143, True, "the server is back")


def test_the_command_prints_what_is_kept_and_ends(server: RunningServer) -> None:
    send(server)
    every = Follower(server.data_dir)
    found = [one.split("\t") for one in lines_of(every.process, 4)]
    assert every.end() == (0, "")
    assert [(one[0], one[2], one[3]) for one in found] == [
        ("1", "project.made", "-"),
        ("2", "agent.registered", "Ada"),
        ("3", "agent.registered", "Ben"),
        ("4", "message.sent", "Ada"),
    ]
    assert found[3][4] == "message=1 thread_id=msg-1 importance=normal"
    some = Follower(server.data_dir, "--kind", "message.sent", "--kind", "project.made", "--json")
    assert seqs([json.loads(one) for one in lines_of(some.process, 2)]) == [1, 4]
    assert some.end() == (0, "")
    for words, said in (
        (("--after", "9"), "the newest entry has the number 4"),
        (("--after", "9", "--follow"), "the newest entry has the number 4"),
        (("--kind", "message.lost"), "unknown kind of event:"),
        (("--project", "/nowhere"), "no project is named"),
    ):
        code, told = Follower(server.data_dir, *words).end()
        assert code == 2
        assert said in told
        assert "remedy: " in told
