"""`postroom projects merge` with a server: as a dry run, in one change, and killed in the middle."""

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

pytestmark = pytest.mark.long

MAIN, TREE = "/yard/main", "/yard/tree"
MESSAGES = 6_000


def environment(folder: Path) -> dict[str, str]:
    return {**plain_environment(folder.parent), "POSTROOM_DATA_DIR": str(folder)}


def postroom(folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = run_here(*words, "--json", environment=environment(folder))
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def furnished(server: RunningServer) -> None:
    with server.line() as line:
        for project, names in ((MAIN, ("Ada", "Ben")), (TREE, ("Cyd", "Dan"))):
            for name in names:
                line.tool("start_session", project_key=project, name=name, program="p", model="m")
        sent = {"subject": "s", "body_md": "b", "thread_id": "deploy"}
        line.tool("send_message", project_key=MAIN, sender_name="Ada", to=["Ben"], **sent)
        line.tool("send_message", project_key=TREE, sender_name="Cyd", to=["Dan"], **sent)


def test_what_a_trial_says_is_what_happens_and_clients_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with RunningServer(folder) as server:
        furnished(server)
        with server.line() as line:
            for project, name, pattern in (
                (MAIN, "Ada", "src/**"),
                (TREE, "Cyd", "src/a.py"),
                (TREE, "Dan", "docs"),
            ):
                line.tool(
                    "file_reservation_paths",
                    project_key=project,
                    agent_name=name,
                    paths=[pattern],
                    exclusive=True,
                )
        plan = postroom(folder, "projects", "merge", TREE, MAIN, "--dry-run")
        [[first, second]] = plan["conflicts"]
        assert first == {"agent": "Ada", "pattern": "src/**"}
        assert second == {"agent": "Cyd", "pattern": "src/a.py"}
        told = run_here("projects", "merge", TREE, MAIN, "--dry-run", environment=environment(folder)).stdout
        assert "2 agents, 1 message, 2 reservations, 0 tokens" in told
        assert "overlap: Ada: src/** and Cyd: src/a.py" in told
        assert (plan["dry_run"], plan["agents"], plan["messages"]) == (True, 2, 1)
        assert (plan["threads_joined"], plan["refusals"]) == (["deploy"], [])
        assert len(postroom(folder, "projects", "list")["projects"]) == 2
        done = postroom(folder, "projects", "merge", TREE, MAIN)
        assert {**done, "dry_run": True} == plan
        assert [one["slug"] for one in postroom(folder, "projects", "list")["projects"]] == ["yard-main"]
        with server.line() as line:
            for key in (TREE, MAIN):
                found = line.tool("fetch_inbox", project_key=key, agent_name="Dan")
                assert [one["id"] for one in found] == [2]
        said = run_here("projects", "merge", TREE, MAIN, environment=environment(folder))
        assert said.returncode == 2
        assert "the same project" in said.stderr
        assert postroom(folder, "doctor", "--full")["ok"]


def test_a_project_moves_to_the_folder_that_is_named(tmp_path: Path) -> None:
    folder, home = tmp_path / "data", tmp_path / "elsewhere"
    home.mkdir()
    with RunningServer(folder) as server:
        furnished(server)
        assert (
            "no folder"
            in postroom(folder, "projects", "move", TREE, str(home / "no"), code=2)["error"]["message"]
        )
        moved = postroom(folder, "projects", "move", TREE, str(home))
        assert moved == {"slug": "yard-tree", "human_key": str(home)}
        for key in (str(home), TREE):
            assert len(postroom(folder, "mail", "inbox", "--as", "Dan", "-p", key)["messages"]) == 1
        refused = postroom(folder, "projects", "move", MAIN, str(home), code=2)
        assert "projects merge yard-tree yard-main" in refused["error"]["remedy"]


def test_killed_in_the_middle_all_of_it_is_done_or_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with RunningServer(folder) as server:
        furnished(server)
    with closing(sqlite3.connect(folder / "postroom.db")) as database, database:
        database.executemany(
            "INSERT INTO messages (project_id, sender_id, subject, body_md, created_ts, sender_name, thread_id)"
            " VALUES (2, 3, ?, 'old', 1000, 'Cyd', 'many')",
            [(f"Old {number}",) for number in range(MESSAGES)],
        )
    with RunningServer(folder) as server:
        merging = subprocess.Popen(
            [sys.executable, "-m", "postroom", "projects", "merge", TREE, MAIN],
            env=environment(folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        log = folder / "postroom.db-wal"
        before = log.stat().st_size
        while log.stat().st_size <= before and merging.poll() is None:
            pass  # the first pages of the change are written: most of it is to come
        server.kill()
        merging.wait()
    with closing(sqlite3.connect(folder / "postroom.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        homes = database.execute("SELECT project_id, count(*) FROM messages GROUP BY 1 ORDER BY 1").fetchall()
        projects = [row[0] for row in database.execute("SELECT id FROM projects ORDER BY id")]
    assert (projects, homes) in (
        ([1, 2], [(1, 1), (2, 1 + MESSAGES)]),
        ([1], [(1, 2 + MESSAGES)]),
    )
    with RunningServer(folder) as server:
        if len(projects) > 1:
            postroom(folder, "projects", "merge", TREE, MAIN)
        with server.line() as line:
            found = line.tool("summarize_thread", project_key=TREE, thread_id="many")
            assert found["messages"] == MESSAGES
