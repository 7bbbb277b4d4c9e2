"""Ctrl-C at the terminal of a server: it says what it waits for, and ends without a traceback."""

import signal
from pathlib import Path

import pytest

from e2e.running import RunningServer, plain_environment, soon
from e2e.test_work_in_a_browser import agent, command
from machine import PATIENCE

pytestmark = pytest.mark.long

STUBBORN = "trap '' TERM INT; cat > /dev/null; exec tail -f /dev/null"
CHATS = """
[agent]
base_url = "http://127.0.0.1:9/v1"
model = "none"
[gateway]
drain = "10m"
[platforms.web]
token_file = "chat.token"
"""
"""Chats get ten minutes, for which no run of mail may wait."""


@pytest.mark.parametrize(("times", "chats"), [(2, ""), (1, CHATS)])
def test_ctrl_c_says_what_is_waited_for(tmp_path: Path, times: int, chats: str) -> None:
    folder, data = tmp_path / "yard", tmp_path / "data"
    folder.mkdir()
    data.mkdir(mode=0o700)
    if chats:
        (data / "gateway.toml").write_text(chats)
        (data / "chat.token").write_text("the token of the harbour")
        (data / "chat.token").chmod(0o600)
    with RunningServer(data) as server:
        with server.line() as line:
            line.tool("ensure_project", human_key=str(folder))
            agent(server, folder, "Ada", ["sh", "-c", STUBBORN])
            line.tool("register_agent", project_key=str(folder), name="Bo", program="person", model="none")
            asked = {"project_key": str(folder), "sender_name": "Bo", "to": ["Ada"]}
            line.tool("send_message", **asked, subject="Go", body_md="on")
        soon(lambda: '"at work"' in command(server, "runs", "list", "--json").stdout)
        process = server._process
        assert process is not None
        process.send_signal(signal.SIGINT)
        first = (
            "Shutting down. Chats get 600 s" if chats else "Shutting down. Active runs go back to the queue"
        )
        soon(lambda: first in server.log())
        if times == 2:
            process.send_signal(signal.SIGINT)
            soon(lambda: "Skipping the wait" in server.log())
        assert process.wait(PATIENCE) == 130
        assert "Traceback" not in server.log()


def test_a_server_with_a_stop_delay_answers_calls_but_is_not_ready_until_a_second_ctrl_c(
    tmp_path: Path,
) -> None:
    environment = {**plain_environment(tmp_path), "POSTROOM_STOP_DELAY": "10m"}
    with RunningServer(tmp_path / "data", environment=environment) as server, server.line() as line:
        process = server._process
        assert process is not None
        process.send_signal(signal.SIGINT)
        not_ready = soon(lambda: (told := line.request("GET", "/readyz")).status == 503 and told)
        assert not_ready
        assert not_ready.json()["checks"]["stopping"] == {"state": "failed"}
        line.tool("ensure_project", human_key=str(tmp_path))
        assert "For 600 s the server still answers calls" in server.log()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "Traceback" not in server.log()
