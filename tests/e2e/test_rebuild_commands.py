"""`postroom rebuild`: the archive from the database through a server, the database from the archive without."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.running import RunningServer, plain_environment


def postroom(data_dir: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "postroom", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**plain_environment(data_dir.parent), "POSTROOM_DATA_DIR": str(data_dir)},
    )
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_is_rebuilt_from_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    project = str(tmp_path / "lighthouse")
    with RunningServer(folder):
        for name in ("Ada", "Ben"):
            postroom(folder, "agents", "register", name, "-p", project)
        for count in range(3):
            words = ["--as", "Ada", "--to", "Ben", "-s", f"Message {count}", "The lamp is lit."]
            postroom(folder, "mail", "send", "-p", project, *words)
        written = postroom(folder, "rebuild", "archive")["written"]
        assert list(written.values()) == [2 + 3]
        (slug,) = written
    shutil.rmtree(folder / "archive" / f"{slug}.git" / "hooks", ignore_errors=True)
    target = tmp_path / "rebuilt.db"
    rows = postroom(folder, "rebuild", "database", str(target))["rows"]
    assert (rows["projects"], rows["agents"], rows["messages"], rows["recipients"]) == (1, 2, 3, 3)
    assert postroom(folder, "rebuild", "database", str(target), code=2)["error"]["code"] == "invalid_path"
    postroom(folder, "restore", str(target), "--force")
    with RunningServer(folder):
        found = postroom(folder, "mail", "search", "-p", project, "lamp")
        assert len(found["hits"]) == 3


def test_a_damaged_archive_leaves_no_half_database(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "archive" / "broken.git").mkdir(parents=True)
    (folder / "archive" / "broken.git" / "HEAD").write_text("garbage")
    target = tmp_path / "rebuilt.db"
    assert "error" in postroom(folder, "rebuild", "database", str(target), code=75)
    assert not target.exists()
