"""A program that a real server starts reaches that server as its agent, until its run ends and not afterwards."""

import json
import sys
from pathlib import Path

import pytest

from e2e.running import RunningServer, soon

AGENT = """
cat > /dev/null
env > "$OUT.new"
"$PYTHON" -m postroom mail inbox --as Bo > "$OUT.inbox" 2>&1
"$PYTHON" -m postroom mail inbox --as Ada > "$OUT.other" 2>&1
"$PYTHON" -m postroom agents register Eve > "$OUT.made" 2>&1
"$PYTHON" -m postroom reservations reserve --as Bo by-hand mine > "$OUT.reserved" 2>&1
"$PYTHON" -m postroom tokens list > "$OUT.tokens" 2>&1
echo '{"cwd": "'"$PWD"'", "session_id": "s"}' | "$PYTHON" -m postroom hook claude Stop > "$OUT.stop"
mv "$OUT.new" "$OUT"
while [ -e "$OUT.wait" ]; do sleep 0.1; done
echo "It is done."
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


class Office:
    """Ada writes to Bo, whom a real server runs."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.out = folder / "out"
        folder.mkdir()
        (folder / "bo.sh").write_text(AGENT)
        self.waits = folder / "out.wait"
        runner = {
            "argv": ["sh", str(folder / "bo.sh")],
            "env": {"OUT": str(self.out), "PYTHON": sys.executable},
        }
        with server.line() as line:
            line.crew(str(folder), "Ada", "Bo")
            asked = {"project": str(folder), "agent": "Bo", "runner": runner}
            body, typed = json.dumps(asked).encode(), {"Content-Type": "application/json"}
            assert line.request("PUT", "/admin/runners", body=body, headers=typed).status == 200

    def send(self) -> None:
        with self.server.line() as line:
            line.tool(
                "send_message",
                project_key=str(self.folder),
                sender_name="Ada",
                to=["Bo"],
                subject="s",
                body_md="b",
            )

    def answers(self) -> list[str]:
        with self.server.line() as line:
            found = line.tool(
                "fetch_inbox", project_key=str(self.folder), agent_name="Ada", include_bodies=True
            )
        return [one["body_md"] for one in found]

    def held(self) -> list[str]:
        with self.server.line() as line:
            found = line.tool("list_file_reservations", project_key=str(self.folder))
        return [one["path"] for one in found["reservations"]]

    def environment(self) -> dict[str, str]:
        soon(self.out.exists)
        rows = (row.partition("=") for row in self.out.read_text().splitlines())
        return {name: value for name, _, value in rows}

    def said(self, what: str) -> str:
        return (self.folder / f"out.{what}").read_text()

    def opens(self, token: str) -> bool:
        with self.server.line() as line:
            headers = {"Authorization": f"Bearer {token}"}
            return line.request("GET", "/v1/health", headers=headers).status != 401


def test_a_program_acts_as_its_agent_and_what_it_reserves_ends_with_its_run(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        office = Office(server, tmp_path / "harbor")
        with server.line() as line:
            reserving = {"project_key": str(office.folder), "agent_name": "Bo", "paths": ["by-hand"]}
            line.tool("file_reservation_paths", **reserving)
        office.send()
        soon(office.answers)
        assert office.held() == ["by-hand"]
        assert "mine" in office.said("reserved")
        told = office.environment()
        assert office.answers() == ["It is done."]
        assert told["POSTROOM_URL"] == server.url
        assert told["POSTROOM_DATA_DIR"] == str(server.data_dir)
        assert "Ada" in office.said("inbox")
        assert "this run belongs to another agent, not to 'Ada'" in office.said("other")
        assert "a run acts as its own agent" in office.said("made")
        assert "only the operator may use this path" in office.said("tokens")
        assert office.said("stop") == ""  # the message in hand does not hold the run's end
        assert told["POSTROOM_TOKEN"].startswith("prr_")
        assert not office.opens(told["POSTROOM_TOKEN"])
        assert told["POSTROOM_TOKEN"] not in server.log()


def test_no_token_outlives_the_server_that_gave_it_out(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "data")
    with server:
        office = Office(server, tmp_path / "harbor")
        office.waits.touch()
        office.send()
        first = office.environment()["POSTROOM_TOKEN"]
        assert office.opens(first)
        office.out.unlink()
        server.kill()
        server.start()
        second = office.environment()["POSTROOM_TOKEN"]
        assert first != second
        assert not office.opens(first)
        assert office.opens(second)
        office.waits.unlink()
        soon(office.answers)
        assert office.answers() == ["It is done."]
