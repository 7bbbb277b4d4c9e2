"""A backup of a running server is restored elsewhere, and a server over it serves its content."""

import json
from pathlib import Path

import pytest

from e2e.running import RunningServer
from e2e.test_lost_stores import postroom, wrote

pytestmark = pytest.mark.long


def test_a_server_starts_on_an_older_backup_and_the_newer_archive_is_kept(tmp_path: Path) -> None:
    def backup() -> str:
        return Path(json.loads(postroom(server.data_dir, "backup", "--json").stdout)["path"]).stem

    def restored(backup: str) -> str | None:
        done = postroom(server.data_dir, "restore", backup, "--force", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)["archive"]

    with RunningServer(tmp_path / "data") as server:
        wrote(server, "first")
        made = backup()
    assert restored(made) is None, "of the newest state the archive stays in its place"
    assert list(server.data_dir.glob("archive.*")) == []
    with server:
        assert wrote(server, "second") == [2]
    kept = restored(made)
    assert kept is not None
    assert (Path(kept) / "yard-elephants.git").is_dir(), "the newer archive is kept"
    with server:
        assert wrote(server, "third") == [2]
    assert (server.data_dir / "archive" / "yard-elephants.git").is_dir(), "there is a new archive"
