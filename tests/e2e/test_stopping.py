"""Ctrl-C at the terminal of a server with a run at work: it says what is waited for, and ends without a traceback."""

import signal
from pathlib import Path

import pytest

from e2e.running import RunningServer, soon
from e2e.test_work_in_a_browser import agent, command

pytestmark = pytest.mark.long

STUBBORN = "trap '' TERM INT; cat > /dev/null; exec tail -f /dev/null"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_says_what_is_waited_for(tmp_path: Path, times: int) -> None:
    folder = tmp_path / "yard"
    folder.mkdir()
    with RunningServer(tmp_path / "data") as server:
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
        soon(lambda: "Shutting down. Active runs go back to the queue" in server.log())
        if times == 2:
            process.send_signal(signal.SIGINT)
            soon(lambda: "Skipping the wait" in server.log())
        assert process.wait(30) == 130
        assert "Traceback" not in server.log()
