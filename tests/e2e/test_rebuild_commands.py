"""`postroom rebuild`: the archive from the database through a server, the database from the archive without."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import run_here
from e2e.running import RunningServer, plain_environment

pytestmark = pytest.mark.long


def postroom(data_dir: Path, *words: str, code: int = 0) -> dict[str, Any]:
    environment = {**plain_environment(data_dir.parent), "POSTROOM_DATA_DIR": str(data_dir)}
    done = run_here(*words, "--json", environment=environment)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_is_rebuilt_from_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    project = str(tmp_path / "lighthouse")
    with RunningServer(folder) as server:
        with server.line() as line:
            line.crew(project, "Ada", "Ben")
            for count in range(3):
                message = {"to": ["Ben"], "subject": f"Message {count}", "body_md": "The lamp is lit."}
                line.tool("send_message", project_key=project, sender_name="Ada", **message)
        written = postroom(folder, "rebuild", "archive")["written"]
        assert list(written.values()) == [2 + 3]
        (slug,) = written
    shutil.rmtree(folder / "archive" / f"{slug}.git" / "hooks", ignore_errors=True)
    target = tmp_path / "rebuilt.db"
    found = postroom(folder, "rebuild", "database", str(target))
    rows, (note,) = found["rows"], found["notes"]
    assert "the archive is written after the database" in note
    assert (rows["projects"], rows["agents"], rows["messages"], rows["recipients"]) == (1, 2, 3, 3)
    assert postroom(folder, "rebuild", "database", str(target), code=2)["error"]["code"] == "invalid_path"
    postroom(folder, "restore", str(target), "--force")
    with RunningServer(folder) as server, server.line() as line:
        found = line.tool("search_messages", project_key=project, query="lamp")
        assert len(found["hits"]) == 3


def test_a_folder_without_an_archive_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    folder, target = tmp_path / "data", tmp_path / "rebuilt.db"
    for name, inside in (("missing", None), ("empty", "."), ("other", "notes"), ("hollow", "x.git")):
        root = tmp_path / name
        if inside is not None:
            (root / inside).mkdir(parents=True)
        before = sorted(root.rglob("*"))
        error = postroom(folder, "rebuild", "database", str(target), "--from", str(root), code=2)["error"]
        assert (error["code"], error["value"], "--from" in error["remedy"]) == (
            "invalid_path",
            str(root),
            True,
        )
        assert sorted(root.rglob("*")) == before
    strange = tmp_path / "strange"
    subprocess.run(["git", "init", "--quiet", "--bare", str(strange / "x.git")], check=True)
    error = postroom(folder, "rebuild", "database", str(target), "--from", str(strange), code=2)["error"]
    assert error["code"] == "invalid_path"
    assert not list(tmp_path.glob("rebuilt.db*"))


def test_a_damaged_archive_leaves_no_half_database(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "archive" / "broken.git").mkdir(parents=True)
    (folder / "archive" / "broken.git" / "HEAD").write_text("garbage")
    target = tmp_path / "rebuilt.db"
    assert "error" in postroom(folder, "rebuild", "database", str(target), code=75)
    assert not target.exists()
