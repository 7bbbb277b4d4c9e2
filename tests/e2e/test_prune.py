"""`postroom prune` with a server: counted first, deleted in steps, and killed in the middle."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import run_here
from e2e.running import RunningServer, plain_environment
from sqlite_files import assert_index_agrees

pytestmark = pytest.mark.long

PROJECT = "/yard/elephants"
MESSAGES = 600


def environment(folder: Path) -> dict[str, str]:
    file = folder.parent / "config.toml"
    file.write_text("[[keep]]\ndays = 30\nunread_stays = false\n[[keep]]\ntopic = 'audit'\nhold = true\n")
    return {
        **plain_environment(folder.parent),
        "POSTROOM_DATA_DIR": str(folder),
        "POSTROOM_CONFIG": str(file),
    }


def postroom(folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = run_here(*words, "--json", environment=environment(folder))
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def furnished(folder: Path) -> None:
    """Leave a store with old messages, one of them held, and a young one."""
    with RunningServer(folder) as server, server.line() as line:
        line.crew(PROJECT, "Ada", "Ben")
        for topic in ("audit", "", ""):
            message = {"to": ["Ben"], "subject": "s", "body_md": "b", "topic": topic}
            line.tool("send_message", project_key=PROJECT, sender_name="Ada", **message)
    with closing(sqlite3.connect(folder / "postroom.db")) as database, database:
        database.execute("UPDATE messages SET created_ts = 1000 WHERE id < 3")
        database.executemany(
            "INSERT INTO messages (project_id, sender_id, subject, body_md, created_ts, sender_name)"
            " VALUES (1, 1, ?, 'old', 1000, 'Ada')",
            [(f"Old {number}",) for number in range(MESSAGES)],
        )
        database.execute("UPDATE messages SET created_ts = 1000 WHERE id > 3")


def left(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "postroom.db")) as database:
        [count] = database.execute("SELECT count(*) FROM messages").fetchone()
        return int(count)


def test_what_a_trial_counts_is_deleted_and_the_server_starts_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    furnished(folder)
    with RunningServer(folder, environment=environment(folder)):
        [found] = postroom(folder, "prune", "--dry-run")["projects"]
        assert found["counts"] == {"goes": 1 + MESSAGES, "held": 1, "young": 1}
        assert left(folder) == 3 + MESSAGES
        postroom(folder, "prune")
        assert left(folder) == 2
    with RunningServer(folder, environment=environment(folder)) as server, server.line() as line:
        sent = line.tool(
            "send_message", project_key=PROJECT, sender_name="Ada", to=["Ben"], subject="s", body_md="b"
        )
        assert sent["deliveries"][0]["payload"]["id"] == 4 + MESSAGES


def test_killed_in_the_middle_it_leaves_a_whole_store_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    furnished(folder)
    with RunningServer(folder, environment=environment(folder)) as server:
        pruning = subprocess.Popen(
            [sys.executable, "-m", "postroom", "prune"],
            env=environment(folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with closing(sqlite3.connect(folder / "postroom.db")) as database:
            while database.execute("SELECT count(*) FROM messages").fetchone() == (3 + MESSAGES,):
                pass
        server.kill()
        pruning.wait()
    with closing(sqlite3.connect(folder / "postroom.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert_index_agrees(database)
    with RunningServer(folder, environment=environment(folder)):
        postroom(folder, "prune")
        assert left(folder) == 2
