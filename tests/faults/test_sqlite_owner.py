"""One process owns the file and its lock names it and dies with it."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from machine import PATIENCE
from postroom.contracts.errors import StoreCorrupt, StoreError, StoreHeld, WrongStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.connection import refuse_shared
from postroom.stores.sqlite.lock import read_owner
from table_rows import each_row

HERE = Path(__file__).parent


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Make another process own the file until the block ends, or until it is killed."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / "holding_process.py"), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "postroom.db"


def note_of(path: Path) -> Path:
    return path.with_name(path.name + ".owner.json")


def test_a_second_process_is_refused_and_told_who_holds_the_file(path: Path) -> None:
    with holder(path) as child:
        with pytest.raises(StoreHeld) as refused:
            SqliteStore.open(path, purpose="second")
        assert f"process {child.pid} (holding, since " in refused.value.message
        assert refused.value.details["pid"] == child.pid
        assert refused.value.value == str(path)
        assert refused.value.remedy


def test_a_second_store_of_this_process_is_refused(path: Path) -> None:
    store = SqliteStore.open(path, purpose="first")
    try:
        with pytest.raises(StoreHeld) as refused:
            SqliteStore.open(path, purpose="second")
        assert refused.value.details["pid"] == os.getpid()
    finally:
        store.close()
    SqliteStore.open(path).close()


def test_a_link_to_the_file_is_the_same_file(path: Path) -> None:
    SqliteStore.open(path).close()
    link = path.with_name("link.db")
    link.symlink_to(path)
    with holder(path), pytest.raises(StoreHeld):
        SqliteStore.open(link)
    with holder(link), pytest.raises(StoreHeld):
        SqliteStore.open(path)


def test_the_file_opens_at_once_when_its_holder_was_killed(path: Path) -> None:
    with holder(path) as child:
        child.kill()
        child.wait()
        assert read_owner(path)["pid"] == child.pid
        store = SqliteStore.open(path, purpose="next")
        try:
            assert read_owner(path)["pid"] == os.getpid()
        finally:
            store.close()


def test_a_holder_that_ends_takes_its_note_away(path: Path) -> None:
    with holder(path) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(PATIENCE) == 0
    assert read_owner(path) == {}
    assert not note_of(path).exists()


STALE = [
    json.dumps({"pid": 1, "since": "2001", "purpose": "old"}),
    "",
    "{",
    "[]",
    "null",
    '{"pid": 1}',
    "\ufffd",
]


@each_row("note", STALE)
def test_a_stale_note_is_harmless(path: Path, note: str) -> None:
    note_of(path).write_text(note, encoding="utf-8")
    store = SqliteStore.open(path, purpose="test")
    try:
        assert read_owner(path)["purpose"] == "test"
    finally:
        store.close()


def test_a_holder_without_a_readable_note_is_a_holder_all_the_same(path: Path) -> None:
    with holder(path):
        for note in STALE[1:]:
            note_of(path).write_text(note, encoding="utf-8")
            with pytest.raises(StoreHeld, match="another process"):
                SqliteStore.open(path)


@pytest.mark.parametrize("table", ["probe", "schema_migrations"])
def test_a_damaged_database_is_refused_typed_and_given_back(path: Path, table: str) -> None:
    SqliteStore.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        find = "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_schema WHERE name = ?"
        page, size = connection.execute(find, (table,)).fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreCorrupt):
            SqliteStore.open(path)
    assert not note_of(path).exists()


def test_a_database_that_cannot_be_opened_is_given_back(path: Path) -> None:
    path.write_bytes(b"this is no database, and long enough not to be taken for an empty one" * 20)
    with pytest.raises(StoreError):
        SqliteStore.open(path)
    assert not note_of(path).exists()
    path.unlink()
    SqliteStore.open(path).close()


def test_a_file_that_is_in_another_folder_too_is_refused_from_both(path: Path, tmp_path: Path) -> None:
    """Each folder has a separate lock and log: two servers would each overwrite the other's data."""
    SqliteStore.open(path, purpose="test").close()
    other = tmp_path / "other" / "postroom.db"
    other.parent.mkdir()
    other.hardlink_to(path)
    for one in (path, other):
        with pytest.raises(WrongStore, match="another folder") as refused:
            SqliteStore.open(one, purpose="test")
        assert f"mv copy.db {one}" in str(refused.value.remedy)
    other.unlink()
    path.with_name("postroom.db.before-restore.1").hardlink_to(path)  # as a restore that was killed leaves it
    SqliteStore.open(path, purpose="test").close()


def test_a_file_that_is_mounted_by_itself_is_refused(tmp_path: Path) -> None:
    path, mounts = tmp_path / "my store" / "postroom.db", tmp_path / "mountinfo"
    path.parent.mkdir()
    path.touch()
    line = "36 35 98:0 /data/postroom.db {} rw,noatime shared:1 - ext4 /dev/root rw\n"
    mounts.write_text(line.format(tmp_path) + line.format(str(path).replace(" ", "\\040")))
    with pytest.raises(WrongStore, match="mounted without the folder") as refused:
        refuse_shared(path, mounts=mounts)
    assert refused.value.remedy == f"mount the folder instead: {path.parent}"
    mounts.write_text(line.format(tmp_path))
    refuse_shared(path, mounts=mounts)
    refuse_shared(path, mounts=tmp_path / "no such system")
