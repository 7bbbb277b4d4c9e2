"""A database that disappears under a running server: no further change is accepted, and no earlier change is lost."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from e2e.running import Refused, RunningServer, soon
from e2e.test_lost_stores import postroom, wrote

pytestmark = pytest.mark.long

PROJECT = {"project_key": "/yard/elephants"}
OK = 200


def send(server: RunningServer, subject: str) -> str:
    """Send a message; return the code of its refusal, or nothing when it was accepted."""
    message = {"sender_name": "Ada", "to": ["Ben"], "subject": subject, "body_md": subject}
    with server.line() as line:
        try:
            line.tool("send_message", **PROJECT, **message)
        except Refused as refused:
            return str(refused.error["code"])
    return ""


def ready(server: RunningServer) -> tuple[int, str]:
    with server.line() as line:
        answer = line.request("GET", "/readyz")
    return answer.status, answer.json()["checks"]["store"].get("code", "")


def at_last(server: RunningServer) -> tuple[int, str]:
    """Return what it tells once it is not ready: what it found before counts for a second."""
    return soon(lambda: found if (found := ready(server))[0] != OK else None, "it is not ready")


def subjects(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as rows:
        return [row[0] for row in rows.execute("SELECT subject FROM messages ORDER BY id")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        with running.line() as line:
            line.tool("ensure_project", human_key="/yard/elephants")
            for name in ("Ada", "Ben"):
                line.tool("register_agent", **PROJECT, program="p", model="m", name=name)
        assert send(running, "accepted") == ""
        yield running


def deleted(database: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        database.with_name(database.name + ending).unlink(missing_ok=True)


def without_log(database: Path) -> None:
    database.with_name(f"{database.name}-wal").unlink()


def swapped(database: Path) -> None:
    """Move another database into its place."""
    other = database.with_name("other.db")
    with closing(sqlite3.connect(other)) as rows:
        rows.execute("CREATE TABLE something (else_ TEXT)")
    other.replace(database)


def overwritten(database: Path) -> None:
    """Copy another database over it: the file is the same one, with other content."""
    other = database.with_name("other.db")
    with closing(sqlite3.connect(other)) as rows:
        rows.execute("CREATE TABLE something (else_ TEXT)")
        rows.execute("INSERT INTO something VALUES (zeroblob(100000))")
        rows.commit()
    shutil.copyfile(other, database)


def restored(server: RunningServer) -> list[str]:
    """Stop the server, restore what it saved as it says, start it and send once more; return the subjects."""
    assert server.stop() == 0
    [rescued] = server.data_dir.glob("postroom.db.rescued.*")
    done = postroom(server.data_dir, "restore", "--force", str(rescued))
    assert done.returncode == 0, done.stderr
    with server:
        assert send(server, "after") == ""
    return subjects(server.database)


@pytest.mark.parametrize("take_away", [deleted, without_log, swapped])
def test_what_was_accepted_is_saved_and_nothing_more_is_accepted(
    take_away: Callable[[Path], None], server: RunningServer, tmp_path: Path
) -> None:
    take_away(server.database)
    assert send(server, "into nothing") == "wrong_store"
    assert at_last(server) == (503, "wrong_store")
    looked = json.loads(postroom(server.data_dir, "doctor", "--json").stdout)
    [found] = [one for one in looked["checks"] if one["name"] == "store writes"]
    assert found["state"] == "failed"
    assert "postroom restore --force" in found["remedy"]
    saved = postroom(server.data_dir, "backup", str(tmp_path / "backup.db"))
    assert (saved.returncode, subjects(tmp_path / "backup.db")) == (0, ["accepted"]), saved.stderr
    assert restored(server) == ["accepted", "after"]


def test_a_database_that_another_one_was_copied_over_is_refused(server: RunningServer) -> None:
    overwritten(server.database)
    assert send(server, "into another") == "wrong_store"
    assert at_last(server) == (503, "wrong_store")
    assert server.stop() == 0


def test_a_database_that_comes_back_is_written_again(server: RunningServer) -> None:
    away = server.database.with_name("away.db")
    server.database.replace(away)
    assert send(server, "meanwhile") == "wrong_store"
    away.replace(server.database)
    assert send(server, "back") == ""
    os.utime(server.database)  # a program that touches files has changed nothing
    assert send(server, "touched") == ""
    assert server.stop() == 0
    assert subjects(server.database) == ["accepted", "back", "touched"]


def checked(server: RunningServer, part: str) -> tuple[str, str]:
    """Examine everything; return the state and the detail of one part."""
    looked = json.loads(postroom(server.data_dir, "doctor", "--full", "--json").stdout)
    [found] = [one for one in looked["checks"] if one["name"].startswith(part)]
    return found["state"], found["detail"]


def test_on_postgresql_damage_and_another_store_are_found_and_a_schema_that_is_gone_is_refused(
    dsn: str, tmp_path: Path
) -> None:
    with (
        RunningServer(tmp_path / "data", "--database-url", dsn) as server,
        psycopg.connect(dsn, autocommit=True) as session,
    ):
        session.execute("SET search_path TO postroom")
        wrote(server, "first", "second")
        assert checked(server, "archive")[0] == "ok"
        assert checked(server, "database")[1].endswith(("with page checksums", "may go unnoticed"))

        session.execute("UPDATE messages SET body_md = 'forged' WHERE id = 2")
        assert checked(server, "messages") == ("failed", "the texts of 1 messages changed on the disk: 2")
        session.execute("UPDATE messages SET check_value = NULL WHERE id = 2")
        state, detail = checked(server, "archive")
        assert (state, "differ from the database" in detail) == ("failed", True)
        session.execute("UPDATE messages SET body_md = 'second' WHERE id = 2")
        assert checked(server, "archive")[0] == "ok"

        [written] = (server.repository("yard-elephants") / "refs" / "heads").glob("main")
        head = written.read_text()
        written.write_text(head[:7])
        assert checked(server, "archive")[0] == "failed"
        written.write_text(head)

        for table, column in (
            ("message_words", "message_id"),
            ("recipients", "message_id"),
            ("messages", "id"),
        ):
            session.execute(f"DELETE FROM {table} WHERE {column} = 2")
        state, detail = checked(server, "archive")
        assert (state, "missing from the database" in detail) == ("failed", True)

        assert ready(server) == (200, "")
        session.execute("DROP TABLE run_live_commands CASCADE")
        assert checked(server, "store reads") == ("failed", "table run_live_commands is missing")
        session.execute("UPDATE store_identity SET store_id = 'another'")
        assert checked(server, "store writes")[0] == "failed"
        session.execute("DROP SCHEMA postroom CASCADE")
        assert send(server, "into nothing") == "wrong_store"
        assert [checked(server, part)[0] for part in ("store writes", "store reads")] == ["failed", "failed"]
        assert at_last(server)[0] == 503


def test_on_postgresql_a_database_that_is_dropped_is_told_as_gone(dsn: str, tmp_path: Path) -> None:
    name = "dropped_under_a_server"
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name}")
        address = urlsplit(dsn)._replace(path=f"/{name}").geturl()
        with RunningServer(tmp_path / "data", "--database-url", address) as server:
            wrote(server, "first")
            session.execute(f"DROP DATABASE {name} WITH (FORCE)")
            assert send(server, "into nothing") == "wrong_store"
            assert at_last(server) == (503, "wrong_store")
            said = postroom(server.data_dir, "doctor").stdout
            assert "the database no longer exists" in said
            assert "pg_restore" in said
