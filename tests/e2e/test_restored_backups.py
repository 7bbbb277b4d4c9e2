"""A backup of a running server is restored elsewhere, and a server over it serves what was in it."""

import json
from pathlib import Path

import pytest

from e2e.running import RunningServer
from e2e.test_lost_stores import postroom, wrote

pytestmark = pytest.mark.long

FOLDER = "/yard/elephants"


def test_a_server_starts_on_an_older_backup_and_the_newer_archive_is_kept(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        wrote(server, "first")
        made = Path(json.loads(postroom(server.data_dir, "backup", "--json").stdout)["path"]).stem
        wrote(server, "second")
    done = postroom(server.data_dir, "restore", made, "--force", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    archive = Path(json.loads(done.stdout)["archive"])
    assert (archive / "yard-elephants.git").is_dir(), "the newer archive is kept"
    with server:
        assert wrote(server, "third") == [2]
    assert (server.data_dir / "archive" / "yard-elephants.git").is_dir(), "there is a new archive"


def test_a_restore_of_the_newest_state_leaves_the_archive_in_its_place(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        wrote(server, "first")
        made = Path(json.loads(postroom(server.data_dir, "backup", "--json").stdout)["path"]).stem
    done = postroom(server.data_dir, "restore", made, "--force", "--json")
    assert json.loads(done.stdout)["archive"] is None
    assert list(server.data_dir.glob("archive.*")) == []
    with server:
        assert wrote(server, "second") == [2]


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
        assert (server.data_dir / "archive" / "yard-elephants.git").is_dir()
        with RunningServer(copy.parent) as restored, restored.line() as line:
            inbox = line.tool("fetch_inbox", project_key=FOLDER, agent_name="Ben")
            assert [one["subject"] for one in inbox] == ["second", "first"]
            assert wrote(restored, "on its own") == [3]
        assert wrote(server, "fourth") == [4]
