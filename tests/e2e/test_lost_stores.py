"""A careless administrator: the database is gone, empty, older or belongs to another server, and the server reports it."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from e2e.running import RunningServer, postroom

pytestmark = pytest.mark.long

CONFIGURATION = 78
_NUMBERS = count(1)


def up(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Start a server that is expected to refuse."""
    return postroom(folder, "up", "--port", "0", *flags)


def wrote(server: RunningServer, *subjects: str) -> list[int]:
    """Send messages in a project and have them archived."""
    with server.line() as line:
        line.crew("/yard/elephants", "Ada", "Ben")
        ids = [
            line.tool(
                "send_message",
                project_key="/yard/elephants",
                sender_name="Ada",
                to=["Ben"],
                subject=one,
                body_md=one,
            )["deliveries"][0]["payload"]["id"]
            for one in subjects
        ]
        line.order("POST", "/admin/rebuild-archive", {})
    return ids


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a token, an archive and a database with two messages, and one of another store."""
    room = tmp_path_factory.mktemp("written")
    for name, subjects in (("data", "ab"), ("other", "abc")):
        (room / name).mkdir(mode=0o755)  # as a service manager makes it
        with RunningServer(room / name) as server:
            wrote(server, *subjects)
    assert json.loads((room / "data" / "archive" / "store.json").read_text())["logs"]["yard-elephants"] >= 2
    return room


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path / "data"


def test_a_data_folder_that_was_there_for_all_to_read_is_tightened(folder: Path) -> None:
    for place in (folder, folder / "archive", folder / "archive" / "yard-elephants.git"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700, place


def former(folder: Path) -> dict[Path, bytes]:
    """Return the content of a folder; of another's database, only whether it exists."""
    return {
        path: b"" if path.name == "postroom.db" else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith((".lock", ".owner.json"))
    }


def missing(database: Path) -> None:
    database.unlink()


def emptied(database: Path) -> None:
    database.write_bytes(b"")


def another(database: Path) -> None:
    """Put the used database of another data folder in its place."""
    shutil.copy(database.parent.parent / "other" / "postroom.db", database)


@pytest.mark.parametrize("lose", [missing, emptied, another])
def test_a_store_that_was_lost_is_refused_with_three_ways_on(
    lose: Callable[[Path], None], folder: Path
) -> None:
    lose(folder / "postroom.db")
    before = former(folder)
    refused = up(folder)
    assert refused.returncode == CONFIGURATION, refused.stdout + refused.stderr
    for way in ("postroom restore", "postroom rebuild database", "postroom up --new-store"):
        assert way in refused.stderr.replace("\n", " ")
    assert "the changes that the archive had not stored yet" in " ".join(refused.stderr.split())
    assert former(folder) == before, "nothing was written"
    looked = postroom(folder, "doctor")
    assert looked.returncode == 1
    assert "--new-store" in looked.stdout


def test_another_store_with_the_same_project_is_refused_also_where_nothing_says_which_belongs_here(
    folder: Path,
) -> None:
    for mark in (folder / "store.json", folder / "archive" / "store.json"):
        mark.unlink()
    mine = (folder / "postroom.db").read_bytes()
    another(folder / "postroom.db")
    before = former(folder)
    refused = up(folder)
    assert refused.returncode == CONFIGURATION, refused.stdout + refused.stderr
    assert "has a project yard-elephants from " in " ".join(refused.stderr.split())
    assert former(folder) == before, "nothing was written"
    assert "but the archive's project" in " ".join(postroom(folder, "doctor").stdout.split())
    (folder / "postroom.db").write_bytes(mine)
    with RunningServer(folder) as server:
        assert wrote(server, "third") == [3]


def test_a_store_of_which_backups_alone_are_left_is_refused(folder: Path) -> None:
    made = postroom(folder, "backup")
    assert made.returncode == 0, made.stderr
    shutil.rmtree(folder / "archive")
    (folder / "store.json").unlink()
    (folder / "token").unlink()
    missing(folder / "postroom.db")
    refused = up(folder)
    assert refused.returncode == CONFIGURATION, refused.stdout + refused.stderr
    assert "postroom restore" in refused.stderr
    [backup] = (folder / "backups").glob("*.db")
    restored = postroom(folder, "restore", "--force", backup.stem)
    assert restored.returncode == 0, restored.stderr
    with RunningServer(folder) as server:
        assert wrote(server, "third") == [3]


CHANGES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "a reservation": ("file_reservation_paths", {"agent_name": "Ben", "paths": ["lib/**"]}),
    "an agent": ("register_agent", {"program": "p", "model": "m", "name": "Cleo"}),
}


def changed(server: RunningServer, tool: str, project: str, asked: Mapping[str, object]) -> None:
    """Change something and have it archived."""
    with server.line() as line:
        line.tool("ensure_project", human_key=project)
        line.tool(tool, project_key=project, **asked)
        line.order("POST", "/admin/rebuild-archive", {})


@pytest.mark.parametrize("lacking", [*CHANGES, "a project"])
def test_a_database_that_is_older_than_the_archive_is_refused_whatever_it_lacks(
    lacking: str, folder: Path
) -> None:
    shutil.copy(folder / "postroom.db", folder / "monday.db")
    place = "/yard/elephants" if lacking in CHANGES else "/yard/third"
    with RunningServer(folder) as server:
        changed(server, *_with(place, CHANGES.get(lacking, CHANGES["an agent"])))
    shutil.copy(folder / "monday.db", folder / "postroom.db")
    (folder / "postroom.db.generation").unlink()  # it would tell that the database is an older copy
    before = former(folder)
    refused = up(folder)
    assert refused.returncode == CONFIGURATION, lacking
    assert "older than the archive" in refused.stderr
    looked = postroom(folder, "doctor")
    assert looked.returncode == 1
    assert "older than the archive" in " ".join(looked.stdout.split())
    assert former(folder) == before, "nothing was written"


def _with(place: str, change: tuple[str, Mapping[str, object]]) -> tuple[str, str, Mapping[str, object]]:
    return change[0], place, change[1]


def test_a_server_that_was_killed_before_the_archive_was_told_starts(folder: Path) -> None:
    """The database is ahead of its archive then, also where two projects became one."""
    server = RunningServer(folder).start()
    changed(server, "register_agent", "/yard/apes", {"program": "p", "model": "m", "name": "Eve"})
    shutil.copytree(folder / "archive", folder / "behind", copy_function=shutil.copy)
    asked = json.dumps({"source": "/yard/apes", "target": "/yard/elephants", "dry_run": False}).encode()
    with server.line() as line:
        merged = line.request(
            "POST", "/admin/projects/merge", body=asked, headers={"Content-Type": "application/json"}
        )
        assert merged.status == 200, merged
        line.tool("file_reservation_paths", project_key="/yard/elephants", agent_name="Ben", paths=["lib/**"])
    server.kill()
    shutil.rmtree(folder / "archive")
    (folder / "behind").rename(folder / "archive")
    with RunningServer(folder) as again:
        assert wrote(again, "third") == [3]
        assert postroom(folder, "doctor").returncode == 0
    missing(folder / "postroom.db")
    rebuilt = folder.parent / "rebuilt.db"
    assert postroom(folder, "rebuild", "database", str(rebuilt)).returncode == 0
    assert postroom(folder, "restore", str(rebuilt)).returncode == 0
    with RunningServer(folder) as server:
        assert wrote(server, "fourth") == [4]


def test_the_ways_on_lead_on(folder: Path) -> None:
    backup = folder.parent / "backup.db"
    shutil.copy(folder / "postroom.db", backup)
    missing(folder / "postroom.db")
    assert postroom(folder, "restore", str(backup)).returncode == 0
    with RunningServer(folder):
        pass
    missing(folder / "postroom.db")
    rebuilt = folder.parent / "rebuilt.db"
    assert postroom(folder, "rebuild", "database", str(rebuilt)).returncode == 0
    assert postroom(folder, "restore", str(rebuilt)).returncode == 0
    with RunningServer(folder) as server:
        assert wrote(server, "third") == [3]
    missing(folder / "postroom.db")
    with RunningServer(folder, "--new-store") as server:
        assert wrote(server, "a new beginning") == [1]
    [aside] = folder.glob("archive.before-new-store.*")
    shown = subprocess.run(
        ["git", "-C", str(aside / "yard-elephants.git"), "log", "--format=%B", "main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Message-Id: 3" in shown.stdout
    with RunningServer(folder, "--new-store"):  # left in a unit file it sets nothing aside again
        pass
    assert list(folder.glob("archive.before-new-store.*")) == [aside]


def test_on_postgresql_a_schema_that_is_gone_older_or_another_is_refused(dsn: str, tmp_path: Path) -> None:
    schema = f"lost_{os.getpid()}_{next(_NUMBERS)}"
    config = tmp_path / "config" / "postroom" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'database_schema = "{schema}"\n')
    folder, flags = tmp_path / "data", ("--database-url", dsn)
    with RunningServer(folder, *flags) as server:
        wrote(server, "first", "second")
    with psycopg.connect(dsn, autocommit=True) as session:
        monday = f"monday_{schema}"
        session.execute(f"CREATE DATABASE {monday} TEMPLATE {session.info.dbname}")
        with RunningServer(folder, *flags) as server:
            changed(server, *_with("/yard/elephants", CHANGES["a reservation"]))
        backup = urlsplit(dsn)._replace(path=f"/{monday}").geturl()
        older = up(folder, "--database-url", backup)
        session.execute(f"DROP DATABASE {monday} WITH (FORCE)")
        session.execute(f"UPDATE {schema}.store_identity SET store_id = 'another'")
        other = up(folder, *flags)
        session.execute(f"DROP SCHEMA {schema} CASCADE")
        gone = up(folder, *flags)
        [[made]] = session.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", (schema,))
    assert [one.returncode for one in (older, other, gone)] == [CONFIGURATION] * 3, older.stderr + gone.stderr
    assert "older than the archive" in older.stderr
    assert made == 0, "nothing was made in its place"
    for one in (older, other, gone):
        told = " ".join(one.stderr.split())
        assert "postroom restore" not in told, "it is for SQLite"
        for way in ("pg_restore", "database copy --from sqlite:FILE", "postroom up --new-store"):
            assert way in told
    rebuilt = tmp_path / "rebuilt.db"
    assert postroom(folder, "rebuild", "database", str(rebuilt)).returncode == 0
    copied = postroom(folder, "database", "copy", "--from", f"sqlite:{rebuilt}", "--to", dsn)
    assert copied.returncode == 0, copied.stderr
    with RunningServer(folder, *flags) as server:
        assert wrote(server, "third") == [3]
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {schema} CASCADE")
    with RunningServer(folder, *flags, "--new-store") as server:
        assert wrote(server, "a new beginning") == [1]
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
