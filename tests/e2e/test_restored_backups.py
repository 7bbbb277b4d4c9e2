"""A backup of a running server is restored elsewhere, and a server over it serves what was in it."""

import json
from pathlib import Path

import pytest

from e2e.running import RunningServer
from e2e.test_lost_stores import postroom, wrote

pytestmark = pytest.mark.long

FOLDER = "/yard/elephants"


def test_a_chosen_backup_of_a_running_server_is_served_by_a_copy(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        made = []
        for subject in ("first", "second", "third"):
            wrote(server, subject)
            done = postroom(server.data_dir, "backup", "--json")
            made.append(Path(json.loads(done.stdout)["path"]).stem)
        copy = tmp_path / "copy" / "postroom.db"
        done = postroom(server.data_dir, "restore", made[1], "--to", str(copy))
        assert done.returncode == 0, done.stderr
        with RunningServer(copy.parent) as restored, restored.line() as line:
            inbox = line.tool("fetch_inbox", project_key=FOLDER, agent_name="Ben")
            assert [one["subject"] for one in inbox] == ["second", "first"]
            assert wrote(restored, "on its own") == [3]
        assert wrote(server, "fourth") == [4]
