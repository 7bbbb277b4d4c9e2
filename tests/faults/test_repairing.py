"""Repair: it announces its changes, makes only those, and never makes anything worse."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from faults.test_corruption import open_place, said, sound  # noqa: F401 - a fixture
from postroom.contracts.errors import StoreCorrupt
from postroom.stores.sqlite.repairing import indexes_that_lack_rows, write_again

INDEX = "messages_thread"


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the archive, file by file, without the traces of each check."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "archive").rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:  # noqa: F811 - the fixture
    import shutil

    return Path(shutil.copytree(sound, tmp_path / "data"))


def repaired(folder: Path, *, dry_run: bool) -> tuple[list[Any], bool]:
    """Repair as a server does; return the repairs, and whether the store and the archive are then consistent."""
    with open_place(folder) as here:
        found = asyncio.run(here.operator.repair(full=True, dry_run=dry_run))
        well = all(
            one["state"] == "ok" for one in found["checks"] if one["name"].startswith(("store", "archive"))
        )
        return found["repairs"], well


def a_repository(folder: Path) -> Path:
    [repository] = (folder / "archive").glob("*.git")
    return repository


def test_a_damaged_archive_is_moved_aside_and_written_again_once_it_was_said(folder: Path) -> None:
    [damaged, *_] = sorted(path for path in a_repository(folder).glob("objects/*/*") if path.is_file())
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-5])
    before = files_of(folder)
    planned, well = repaired(folder, dry_run=True)
    assert ([one["state"] for one in planned], well, files_of(folder)) == (["planned"], False, before)
    assert "move the archive" in planned[0]["does"]
    done, well = repaired(folder, dry_run=False)
    assert ([one["state"] for one in done], well) == (["done"], True)
    [aside] = (folder / "archive").glob("*.damaged.*")
    assert (aside / damaged.relative_to(a_repository(folder))).exists(), "nothing of it is lost"
    assert repaired(folder, dry_run=True) == ([], True)


def test_an_archive_that_has_more_than_the_database_is_left_alone(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "postroom.db")) as rows, rows:
        rows.execute("DELETE FROM recipients WHERE message_id = 6")
        rows.execute("DELETE FROM messages WHERE id = 6")
    before = files_of(folder)
    done, well = repaired(folder, dry_run=False)
    assert (done, well, files_of(folder)) == ([], False, before)


def test_an_archive_that_cannot_be_read_is_told_with_the_way_to_write_it_anew(
    folder: Path, tmp_path: Path
) -> None:
    for one in a_repository(folder).glob("objects/**/*"):
        if one.is_file():
            one.unlink()
    with open_place(folder) as here:
        found = asyncio.run(here.operator.doctor())
        [told] = [one for one in found["checks"] if one["name"].startswith("archive")]
        assert told["state"] == "failed"
        assert "move the repository to another folder and run `postroom rebuild archive`" in told["remedy"]
        a_repository(folder).rename(tmp_path / "aside")
        asyncio.run(here.operator.rebuild_archive(None))
        found = asyncio.run(here.operator.doctor(full=True))
    assert [one["state"] for one in found["checks"] if one["name"].startswith("archive")] == ["ok"]


def without_index(database: Path, *statements: str) -> None:
    """Change rows without their index, which then lacks them or has too many."""
    with closing(sqlite3.connect(database, isolation_level=None)) as rows:
        rows.execute("PRAGMA writable_schema = ON")
        kept = rows.execute("SELECT * FROM sqlite_schema WHERE name = ?", (INDEX,)).fetchone()
        rows.execute("DELETE FROM sqlite_schema WHERE name = ?", (INDEX,))
    with closing(sqlite3.connect(database, isolation_level=None)) as rows:
        for statement in statements:
            rows.execute(statement)
        rows.execute("PRAGMA writable_schema = ON")
        rows.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", kept)


@pytest.mark.parametrize(
    ("what", "statements", "is_mended"),
    [
        (
            "lacks rows",
            (
                "INSERT INTO messages (project_id, sender_id, subject, body_md, created_ts)"
                " SELECT project_id, sender_id, subject, body_md, created_ts FROM messages",
            ),
            True,
        ),
        (
            "knows of rows that are gone",
            ("DELETE FROM recipients", "DELETE FROM messages WHERE id = 3"),
            False,
        ),
        ("knows what a row was", ("UPDATE messages SET thread_id = 'garbled' WHERE id = 3",), False),
    ],
)
def test_an_index_is_written_again_only_where_it_knows_nothing_more(
    folder: Path, what: str, statements: tuple[str, ...], is_mended: bool
) -> None:
    database = folder / "postroom.db"
    without_index(database, *statements)
    with closing(sqlite3.connect(database, isolation_level=None)) as rows:
        assert rows.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",), what
        assert indexes_that_lack_rows(rows) == ([INDEX] if is_mended else []), what
        rows.execute("BEGIN")
        if is_mended:
            write_again(rows, [INDEX])
            assert rows.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
        rows.execute("ROLLBACK")


def test_an_index_that_is_no_better_afterwards_is_left_as_it_was(folder: Path) -> None:
    database = folder / "postroom.db"
    without_index(database, "DELETE FROM recipients", "DELETE FROM messages WHERE id = 3")
    with closing(sqlite3.connect(database, isolation_level=None)) as rows:
        rows.execute("BEGIN")
        with pytest.raises(StoreCorrupt):
            write_again(rows, [])
        rows.execute("ROLLBACK")


def test_a_server_mends_an_index(folder: Path) -> None:
    without_index(
        folder / "postroom.db",
        "INSERT INTO messages (project_id, sender_id, subject, body_md, created_ts)"
        " SELECT project_id, sender_id, subject, body_md, created_ts FROM messages WHERE id = 1",
        "DELETE FROM recipients WHERE message_id = 13",
    )
    planned, _ = repaired(folder, dry_run=True)
    assert [(one["name"], one["state"]) for one in planned][:1] == [("store reads", "planned")]
    done, _ = repaired(folder, dry_run=False)
    assert done[0]["state"] == "done"
    with open_place(folder) as here:
        assert asyncio.run(here.application.store.check()) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_an_archive_whose_head_was_lost_gets_it_back_and_keeps_its_history(
    folder: Path, *, is_there: bool
) -> None:
    repository = a_repository(folder)
    before = files_of(folder)
    head = repository / "HEAD"
    head.write_bytes(b"") if is_there else head.unlink()
    planned, well = repaired(folder, dry_run=True)
    assert ([one["state"] for one in planned], well) == (["planned"], False)
    assert "HEAD" in planned[0]["does"]
    done, well = repaired(folder, dry_run=False)
    assert ([one["state"] for one in done], well, files_of(folder)) == (["done"], True, before)
