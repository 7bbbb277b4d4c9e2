"""An agent that another server runs, through a real `postroom up` that is killed while it waits."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Answer, Line, RunningServer, soon
from runners.fake_remote import sign

SECRET = "a secret that both servers know"
KEY = "a-key-within-the-address"
OTHER = "a secret that nobody here knows"
pytestmark = pytest.mark.timeout(120)


class FakeRemote(ThreadingHTTPServer):
    """A fake of another server that runs agents, for tests: it accepts each run, and answers at the command of the test."""

    daemon_threads = True

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.came = threading.Condition()
        super().__init__(("127.0.0.1", 0), _Requests)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/run?key={KEY}"

    def run(self, number: int) -> dict[str, Any]:
        """Return a run that came, from 1, as soon as it has come."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.runs) >= number, 20)
            return self.runs[number - 1]


class _Requests(BaseHTTPRequestHandler):
    server: FakeRemote

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.came:
            self.server.runs.append(told)
            self.server.came.notify_all()
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def remote() -> Iterator[FakeRemote]:
    with FakeRemote() as serving:
        yield serving
        serving.shutdown()


@pytest.fixture
def server(tmp_path: Path, remote: FakeRemote) -> Iterator[RunningServer]:
    """A server whose configuration file has Bo run by the other one."""
    settings = tmp_path / "config" / "postroom"
    settings.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    told = {
        "name": "Bo",
        "project": str(tmp_path),
        "kind": "http",
        "url": remote.url,
        "secret_file": str(secret),
    }
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())
    (settings / "config.toml").write_text(f"[[agents]]\n{lines}")
    with RunningServer(tmp_path / "data") as running:
        with running.line() as line:
            line.tool("register_agent", project_key=str(tmp_path), program="p", model="m", name="Ada")
        yield running
    assert "Traceback" not in running.log()
    assert SECRET not in running.log()
    assert KEY not in running.log()


def ask(line: Line, project: Path) -> None:
    sent = line.tool(
        "send_message",
        project_key=str(project),
        sender_name="Ada",
        to=["Bo"],
        subject="Lights",
        body_md="Are they on?",
    )
    assert sent["deliveries"][0]["seen"] == ["wake by runner"]


def give(
    server: RunningServer, run: dict[str, Any], secret: str = SECRET, age: int = 0, **told: Any
) -> Answer:
    """Send a result to the address that came with a run, with no token."""
    body = json.dumps({"kind": "result", "dispatch": run["dispatch"], **told}).encode()
    path = run["callback"].removeprefix(server.url)
    headers = sign(secret, int(time.time() - age) * 1000, body)
    with Line(server.address, patience=20) as line:
        return line.request("POST", path, body=body, headers=headers)


def answers(server: RunningServer, project: Path) -> list[str]:
    """Return the mailed answer as soon as there is one."""
    with server.line() as line:
        found = soon(lambda: line.tool("fetch_inbox", project_key=str(project), agent_name="Ada"))
    return [one["body_md"] for one in found]


def test_results_come_in_by_a_signature_alone_and_count_once(
    server: RunningServer, remote: FakeRemote, tmp_path: Path
) -> None:
    with server.line() as line:
        ask(line, tmp_path)
        [runner] = line.request("GET", "/admin/runners").json()["runners"]
    assert runner["runner"]["kind"] == "http"
    run = remote.run(1)
    for refused in (
        give(server, run, secret=OTHER, text="forged"),
        give(server, run, age=400, text="old"),
        give(server, {**run, "callback": f"{server.url}/callbacks/no-such"}, text="astray"),
    ):
        assert (refused.status, refused.json()["code"]) == (401, "wrong_signature")
    with Line(server.address) as line:
        assert line.request("GET", "/callbacks/x").status == 405
    assert give(server, run, text="x" * (1 << 20)).status == 413
    assert give(server, run).status == 400
    taken = give(server, run, text="They are on.")
    assert (taken.status, taken.json()) == (200, {"taken": True})
    assert give(server, run, text="They are on.").status == 200
    other = give(server, run, text="They are off.")
    assert (other.status, other.json()["code"]) == (409, "result_conflict")
    assert answers(server, tmp_path) == ["They are on."]
    assert len(remote.runs) == 1


def test_a_server_that_was_killed_while_it_waited_asks_again_and_takes_the_result_once(
    server: RunningServer, remote: FakeRemote, tmp_path: Path
) -> None:
    with server.line() as line:
        ask(line, tmp_path)
    first = remote.run(1)
    server.kill()
    server.start()
    second = remote.run(2)
    assert {**first, "callback": ""} == {**second, "callback": ""}
    assert give(server, second, text="after all").status == 200
    assert give(server, second, text="after all").status == 200
    assert answers(server, tmp_path) == ["after all"]
    assert server.stop() == 0
    assert len(remote.runs) == 2
