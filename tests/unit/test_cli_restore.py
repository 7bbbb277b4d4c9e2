"""Backup, restore and examination without a server, on real files."""

import asyncio
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conformance.promises.given import an_office, put_message
from fake_postroom import FakePostroom
from postroom.app.backups import Backups
from postroom.app.config import Settings
from postroom.cli.main import main
from postroom.contracts import errors, progress
from postroom.stores.migrations import shipped_migrations
from postroom.stores.sqlite import SqliteStore, restoring
from postroom.stores.sqlite.connection import connect
from postroom.stores.sqlite.copying import back_up
from postroom.stores.sqlite.lock import OwnerLock
from postroom.stores.sqlite.migrate import migrate
from postroom.stores.sqlite.restoring import RestoreOptions, restore
from postroom.testing import ManualClock
from sqlite_files import open_new, with_the_newest_schema
from table_rows import each_row

NOW = 1_700_000_000_000


def make(path: Path, mark: str) -> Path:
    """Make a database of postroom that tells whose it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(with_the_newest_schema())
    connection = connect(path)
    connection.execute("CREATE TABLE mark (text TEXT)")
    connection.execute("INSERT INTO mark VALUES (?)", (mark,))
    connection.close()
    return path


def mark_of(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("SELECT text FROM mark").fetchone()[0])
    finally:
        connection.close()


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} - {"postroom.db.lock"}


@pytest.fixture
def data(tmp_path: Path, folder: Path) -> Path:
    assert folder
    made = tmp_path / "data"
    made.mkdir()
    return made


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A backup, made as the server makes one."""
    connection = connect(make(tmp_path / "origin" / "x.db", "saved"))
    target = tmp_path / "saved.db"
    back_up(connection, target)
    connection.close()
    return target


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_backup_takes_an_empty_place(data: Path, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run(capsys, "restore", str(saved), "--to", str(data / "new" / "copy.db"))
    assert (code, document["database"]) == (0, str(data / "new" / "copy.db"))
    assert mark_of(data / "new" / "copy.db") == "saved"
    shutil.rmtree(data / "new")
    code, document = run(capsys, "restore", str(saved))
    assert code == 0
    assert set(document) == {"source", "database", "former", "schema", "size", "done", "archive"}
    assert (document["former"], document["done"], document["schema"] >= 1) == (None, True, True)
    assert mark_of(data / "postroom.db") == "saved"
    assert names(data) == {"postroom.db"}
    assert (data / "postroom.db").stat().st_mode & 0o077 == 0


def test_a_database_in_place_is_replaced_by_force_alone_and_kept(
    data: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(data / "postroom.db", "former")
    code, document = run(capsys, "restore", str(saved))
    assert (code, document["error"]["code"]) == (2, "state_conflict")
    assert "--force" in document["error"]["remedy"]
    assert mark_of(data / "postroom.db") == "former"
    code, document = run(capsys, "restore", str(saved), "--force")
    assert (code, mark_of(data / "postroom.db")) == (0, "saved")
    assert mark_of(Path(document["former"])) == "former"
    assert Path(document["former"]).name.startswith("postroom.db.before-restore.")


def test_a_backup_that_is_older_than_the_database_is_opened_after_it_was_restored(
    tmp_path: Path, clock: ManualClock
) -> None:
    database, saved = tmp_path / "postroom.db", tmp_path / "saved.db"
    open_new(database, clock).close()
    with closing(connect(database)) as connection:
        back_up(connection, saved)
    for _ in range(2):
        store = SqliteStore.open(database, clock=clock)
        asyncio.run(store.probe())
        store.close()
    restore(RestoreOptions(source=saved, database=database, force=True), now=NOW)
    SqliteStore.open(database, clock=clock).close()


def test_the_former_database_is_kept_with_its_log_and_when_it_is_damaged(tmp_path: Path, saved: Path) -> None:
    database = make(tmp_path / "db" / "postroom.db", "former")
    log = database.with_name("postroom.db-wal")
    crashed = connect(database)
    crashed.execute("UPDATE mark SET text = 'in the log'")
    copies = {path: path.read_bytes() for path in (database, log)}
    crashed.close()
    for path, content in copies.items():  # what a killed server leaves
        path.write_bytes(content)
    done = restore(RestoreOptions(source=saved, database=database, force=True), now=NOW)
    assert done.former is not None
    assert (mark_of(database), mark_of(done.former)) == ("saved", "in the log")
    database.write_bytes(b"no database at all " * 100)
    log.write_bytes(b"its log")
    done = restore(RestoreOptions(source=saved, database=database, force=True), now=NOW + 1000)
    assert done.former is not None
    assert mark_of(database) == "saved"
    assert done.former.read_bytes() == b"no database at all " * 100
    assert done.former.with_name(done.former.name + "-wal").read_bytes() == b"its log"


def test_a_dry_run_checks_everything_and_changes_nothing(
    data: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(data / "postroom.db", "former")
    before = (data / "postroom.db").read_bytes()
    code, document = run(capsys, "restore", str(saved), "--dry-run")
    assert (code, document["done"]) == (0, False)
    assert document["former"].endswith(".before-restore." + document["former"].rpartition(".")[2])
    assert names(data) == {"postroom.db"}
    assert (data / "postroom.db").read_bytes() == before
    assert main(["restore", str(saved), "--dry-run"]) == 0
    assert "can be restored to" in capsys.readouterr().out


def test_a_database_in_use_is_not_touched(
    data: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(data / "postroom.db", "former")
    lock = OwnerLock(data / "postroom.db")
    lock.acquire(now=NOW, purpose="server")
    try:
        code, document = run(capsys, "restore", str(saved), "--force")
        assert (code, document["error"]["code"]) == (78, "store_held")
        code, document = run(capsys, "backup", str(data / "b.db"))
        assert (code, document["error"]["code"]) == (78, "store_held")
    finally:
        lock.release()
    assert mark_of(data / "postroom.db") == "former"


def test_a_spoiled_backup_is_refused_and_nothing_changes(
    data: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(data / "postroom.db", "former")
    whole = saved.read_bytes()
    for content in (
        b"this is a message, not a database\n" * 50,
        b"",
        whole[: len(whole) // 2],
        whole[:8192] + os.urandom(8192) + whole[16384:],
    ):
        saved.write_bytes(content)
        code, document = run(capsys, "restore", str(saved), "--force")
        assert (code, document["error"]["code"]) == (78, "store_corrupt")
        assert str(saved) in document["error"]["message"]
        assert (mark_of(data / "postroom.db"), names(data)) == ("former", {"postroom.db"})


def scribble(backup: Path) -> None:
    content = bytearray(backup.read_bytes())
    middle = slice(len(content) // 4, len(content) // 2)
    content[middle] = bytes(byte ^ 0xFF for byte in content[middle])
    backup.write_bytes(content)


def cut_off(backup: Path) -> None:
    os.truncate(backup, backup.stat().st_size - 4096)


def change_a_text(backup: Path) -> None:
    content = bytearray(backup.read_bytes())
    content[content.index(b"former")] ^= 4  # no check of SQLite covers a text
    backup.write_bytes(content)


@each_row("harm", [scribble, cut_off, change_a_text])
def test_a_damaged_backup_is_told_is_not_restored_and_counts_for_none_that_stays(
    data: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None]
) -> None:
    shutil.rmtree(data / "backups", ignore_errors=True)
    (data / "postroom.db").unlink(missing_ok=True)
    make(data / "postroom.db", "former")
    whole, damaged = (Path(run(capsys, "backup")[1]["path"]) for _ in range(2))
    code, document = run(capsys, "backup", "list", "--check")
    assert (code, [one["fault"] for one in document["backups"]]) == (0, ["", ""])
    harm(damaged)
    before = names(data)
    code, document = run(capsys, "restore", damaged.name, "--force")
    assert (code, document["error"]["code"]) == (78, "store_corrupt")
    assert (mark_of(data / "postroom.db"), names(data)) == ("former", before)
    code, document = run(capsys, "backup", "list", "--check")
    assert (code, [one["name"] for one in document["backups"] if one["fault"]]) == (1, [damaged.name])
    _, dry = run(capsys, "backup", "prune", "--keep", "1", "--dry-run")
    assert damaged.exists()
    code, done = run(capsys, "backup", "prune", "--keep", "1")
    assert (code, done["removed"], done["freed"] > 0) == (0, [damaged.name], True)
    assert dry["removed"] == done["removed"]
    assert [one["name"] for one in run(capsys, "backup", "list", "--check")[1]["backups"]] == [whole.name]


def test_prune_and_list_leave_other_files_of_the_folder_alone(
    data: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(data / "postroom.db", "mine")
    made = [Path(run(capsys, "backup")[1]["path"]) for _ in range(2)]
    folder = made[0].parent
    saved.rename(folder / "monday.db")
    (folder / "notes.db").write_text("theirs")
    (folder / "postroom-2001-01-01T000000000Z.db").symlink_to(folder / "monday.db")
    os.mkfifo(folder / "postroom-2002-01-01T000000000Z.db")
    (folder / "daily-2003-01-01T000000000Z.db").mkdir()
    others = {path.name for path in folder.iterdir()} - {
        f"{one.name}{end}" for one in made for end in ("", ".sha256")
    }
    assert [one["name"] for one in run(capsys, "backup", "list", "--check")[1]["backups"]] == [
        one.name for one in made
    ]
    assert run(capsys, "backup", "prune", "--keep", "1")[1]["removed"] == [made[0].name]
    left = {path.name for path in folder.iterdir()}
    assert left == others | {made[1].name, f"{made[1].name}.sha256"}


def test_what_is_no_backup_is_refused(
    data: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = run(capsys, "backup")
    assert (code, document["error"]["code"]) == (2, "state_conflict"), "before the first start"
    assert names(data) == set()
    make(data / "postroom.db", "former")
    (tmp_path / "odd.db").write_bytes(b"no database")
    assert run(capsys, "restore", str(tmp_path / "odd.db"), "--to", str(tmp_path / "to" / "b.db"))[0] == 78
    assert list((tmp_path / "to").iterdir()) == []
    for words in (
        *(("restore", "/", "--dry-run"), ("restore", str(saved), "--to", "/"), ("backup", "lisst")),
        *(("restore", str(tmp_path / name), "--force") for name in ("missing.db", ".")),
    ):
        code, document = run(capsys, *words)
        assert (code, document["error"]["code"]) == (2, "invalid_path"), words
    live = connect(make(tmp_path / "live.db", "live"))
    live.execute("UPDATE mark SET text = 'newer'")
    code, document = run(capsys, "restore", str(tmp_path / "live.db"))
    live.close()
    assert (code, document["error"]["code"]) == (2, "invalid_argument"), "a database in use"
    assert names(data) == {"postroom.db"}
    assert main(["restore", "monday"]) != 0
    assert "no backup" in (said := capsys.readouterr().err)
    assert "postroom backup list" in said
    assert main(["doctor", "--dry-run"]) == 2
    assert "--repair" in capsys.readouterr().err, "a trial without a repair"


@each_row(
    "change, name",
    [
        ("INSERT INTO schema_migrations VALUES (9999, 'later', 'x', 0)", "schema_too_new"),
        ("UPDATE schema_migrations SET checksum = 'other'", "store_corrupt"),
        ("DELETE FROM schema_migrations", "store_corrupt"),
        ("DROP TABLE schema_migrations", "store_corrupt"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(
    data: Path, saved: Path, capsys: pytest.CaptureFixture[str], change: str, name: str
) -> None:
    other = saved.with_name("other.db")
    other.write_bytes(saved.read_bytes())
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute(change)
    ended, document = run(capsys, "restore", str(other))
    assert (ended, document["error"]["code"]) == (78, name)
    assert names(data) == set()


def test_a_full_disk_leaves_everything_as_it_was(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = make(tmp_path / "db" / "postroom.db", "former")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(restoring.os, "fsync", full)
    with pytest.raises(errors.StoreFull):
        restore(RestoreOptions(source=saved, database=database, force=True), now=NOW)
    assert mark_of(database) == "former"
    assert names(database.parent) == {"postroom.db"}


def test_it_is_told_how_much_of_a_backup_is_restored(tmp_path: Path, saved: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with progress.watched(lambda *far: told.append(far)):
        restore(RestoreOptions(source=saved, database=tmp_path / "x.db"), now=NOW)
    size = saved.stat().st_size
    assert told[0] == ("copying the backup: bytes", size, size)


def test_a_backup_without_a_server_is_whole_and_leaves_the_schema(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = make(data / "postroom.db", "mine")
    code, document = run(capsys, "backup")
    assert code == 0
    target = Path(document["path"])
    assert target.parent == data / "backups"
    assert target.stat().st_mode & 0o077 == 0
    assert run(capsys, "restore", target.stem, "--to", str(data / "copy.db"))[0] == 0
    assert (mark_of(data / "copy.db"), document["bytes"]) == ("mine", (data / "copy.db").stat().st_size)
    assert mark_of(database) == "mine"
    code, document = run(capsys, "backup", str(target))
    assert (code, document["error"]["code"]) == (2, "invalid_path")
    code, document = run(capsys, "backup", "here.db")  # to where the person stands
    assert (code, document["path"]) == (0, str(Path.cwd() / "here.db"))


async def with_a_message(data: Path) -> str:
    """Have a server's store take a message, and then the timer's backup; return that one's name."""
    clock = ManualClock()
    store = await asyncio.to_thread(SqliteStore.open, data / "postroom.db", clock=clock)
    here = await an_office(store)
    await store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="before"))
    await Backups(Settings(data_dir=data), store, clock, timer=clock).round()
    await store.write(lambda tx: put_message(tx, here.ada, [here.ben], body="after"))
    await asyncio.to_thread(store.close)
    (made,) = (data / "backups").glob("daily-*.db")
    return made.name


async def messages_in(data: Path) -> list[str]:
    store = await asyncio.to_thread(SqliteStore.open, data / "postroom.db")
    assert await store.check() == []
    found = await store.read(lambda tx: tx.project_messages(1, limit=9))
    await asyncio.to_thread(store.close)
    return [one.body_md for one in found]


def test_a_backup_of_the_timer_is_restored(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = asyncio.run(with_a_message(data))
    assert asyncio.run(messages_in(data)) == ["before", "after"]
    code, document = run(capsys, "restore", made, "--force")
    assert (code, document["done"]) == (0, True)
    assert asyncio.run(messages_in(data)) == ["before"]
    assert Path(document["former"]).exists()


def test_the_copy_from_before_a_migration_is_restored_and_migrated_anew(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = shipped_migrations("sqlite")
    database = data / "postroom.db"
    with closing(connect(database)) as connection:
        migrate(connection, database, now=NOW, steps=steps[:-1])
        connection.execute(
            "INSERT INTO projects (slug, human_key, owner, created_at) VALUES ('bay', '/bay', 'local', 1)"
        )
    SqliteStore.open(database, clock=ManualClock()).close()
    (kept,) = data.glob("*.bak")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM projects")
        connection.commit()
    code, document = run(capsys, "restore", str(kept), "--force")
    assert (code, document["schema"]) == (0, steps[-2].version)
    SqliteStore.open(database, clock=ManualClock()).close()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT slug FROM projects").fetchall() == [("bay",)]
        applied = connection.execute("SELECT max(version) FROM schema_migrations").fetchone()
    assert applied == (steps[-1].version,)


def test_a_running_server_makes_the_backup(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with FakePostroom() as fake:
        fake.admin[("POST", "/admin/backup")] = lambda seen: {
            "path": seen.body.get("target", "/usual"),
            "bytes": 1,
        }
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        assert run(capsys, "backup") == (0, {"path": "/usual", "bytes": 1})
        assert run(capsys, "backup", "x.db") == (0, {"path": str(tmp_path / "x.db"), "bytes": 1})
    code, document = run(capsys, "backup")  # somebody else's server is gone: nothing here to back up
    assert (code, document["error"]["code"]) == (75, "server_unavailable")
    assert names(data) == set()


def test_doctor_examines_what_it_can_without_a_server(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(data / "postroom.db", "mine")
    for path in (data, data / "postroom.db"):
        path.chmod(path.stat().st_mode & 0o700)
    code, document = run(capsys, "doctor")
    assert (code, document["ok"]) == (1, False)
    states = {one["name"]: one["state"] for one in document["checks"]}
    well = dict.fromkeys(("settings", "token", "store", "messages", "folders", "disk"), "ok")
    assert states == {"server": "failed", **well, "backups": "unknown"}
    assert main(["backup"]) == 0
    capsys.readouterr()
    _, document = run(capsys, "doctor")
    assert {one["name"]: one["state"] for one in document["checks"]}["backups"] == "ok"
    (data / "postroom.db").write_bytes(b"broken" * 1000)
    (data / "token").write_text("nonsense")
    code, document = run(capsys, "doctor")
    found = {one["name"]: one["detail"] for one in document["checks"] if one["state"] != "ok"}
    assert set(found) == {"server", "token", "store", "messages"}
    assert all(set(one) == {"name", "state", "detail", "remedy"} for one in document["checks"])
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert f"failed  store: {found['store']}" in shown
    assert "ok      settings" in shown


def test_two_restores_at_once_do_not_mix(tmp_path: Path, saved: Path) -> None:
    database = tmp_path / "db" / "postroom.db"
    outcomes: list[str] = []

    def attempt() -> None:
        try:
            restore(RestoreOptions(source=saved, database=database, force=True), now=NOW)
            outcomes.append("done")
        except errors.StoreHeld:
            outcomes.append("held")

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(10)
    assert len(outcomes) == 4
    assert "done" in outcomes
    assert mark_of(database) == "saved"
