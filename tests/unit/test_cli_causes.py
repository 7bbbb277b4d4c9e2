"""An obstacle is named exactly, and each remedy fits its surface."""

import asyncio
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cli_room import Run
from conformance.promises.given import an_office, put_message
from postroom.app.check_results import MIN_FREE, told_of_disk
from postroom.cli.main import main
from postroom.contracts.errors import StoreFull
from postroom.stores.sqlite import SqliteStore, restoring
from table_rows import each_row


@pytest.fixture
def data(tmp_path: Path, folder: Path) -> Path:
    assert folder
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    return made


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(path.parent)  # the names of sockets are short
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


HAS_ALL = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such files")


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


KINDS: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a named pipe": make_pipe,
    "a socket": bind,
    "a device": lambda path: path.symlink_to(os.devnull),
}


@each_row("words", ["status", "backup", "doctor", "up --port 0", "mail inbox --as Ada"])
@each_row("mode", [0o644, 0o755])
def test_a_file_in_the_place_of_the_data_folder_is_told(
    words: str, mode: int, tmp_path: Path, folder: Path, bare: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.touch()
    file.chmod(mode)
    for path in (file, file / "inner", Path(os.devnull)):
        monkeypatch.setenv("POSTROOM_DATA_DIR", str(path))
        done = bare(*words.split())
        said = done.out + done.err
        assert done.code == 78, (path, said)
        obstacle = "it" if path != file / "inner" else str(file)
        assert f"the data folder {path} cannot be read: {obstacle} is not a folder" in said
        assert "chmod" not in said


@HAS_ALL
@each_row("kind", KINDS)
def test_what_is_no_file_in_the_databases_place_is_told_as_what_it_is(
    kind: str, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, database = data / "saved.db", data / "postroom.db"
    saved.unlink(missing_ok=True)
    SqliteStore.open(saved).close()
    monkeypatch.chdir(data)
    for words in (["backup"], ["doctor"], ["up", "--port", "0"], ["restore", str(saved), "--force"]):
        KINDS[kind](database)
        code = main(words)
        said = "".join(capsys.readouterr())
        assert f" is {kind} instead of a database" in said, words
        if words[0] == "restore":
            assert code == 78
        else:
            assert "move it away, or use another file with --database" in said, words
        database.rmdir() if database.is_dir() else database.unlink()


def test_a_file_in_the_place_of_the_folder_of_backups_is_told(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SqliteStore.open(data / "postroom.db").close()
    (data / "backups").write_text("mine")
    for words in ("backup", "backup list", "backup prune --keep 1"):
        assert main(words.split()) == 78
        said = "".join(capsys.readouterr())
        assert f"{data / 'backups'} is a file instead of a folder" in said
        assert "remedy: move the file to another folder" in said
    assert main(["doctor"]) == 1
    assert f"failed  backups: {data / 'backups'} is a file instead of a folder" in capsys.readouterr().out
    assert (data / "backups").read_text() == "mine"


def test_prune_says_what_it_did_once_and_where_other_commands_do(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SqliteStore.open(data / "postroom.db").close()
    for _ in range(2):
        assert main(["backup"]) == 0
    capsys.readouterr()
    assert main(["backup", "prune", "--keep", "1"]) == 0
    said = capsys.readouterr()
    assert said.out.count(" removed\n") == 1
    assert "backup.removed" not in said.out + said.err


def test_a_check_that_has_no_room_is_not_told_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(restoring, "_read_whole", full)
    with pytest.raises(StoreFull):
        restoring.checked_schema(tmp_path / "x.db", tmp_path / "x.db")


def test_a_disk_with_too_little_room_is_told_with_how_much_it_must_be(tmp_path: Path) -> None:
    database = tmp_path / "postroom.db"
    database.write_bytes(b"")
    small = told_of_disk(database, free_of=lambda _: 1000).detail
    os.truncate(database, MIN_FREE)
    large = told_of_disk(database, free_of=lambda _: 2 * MIN_FREE - 1).detail
    assert small == f"1000 bytes are free, the database has 0; at least {MIN_FREE} are needed"
    assert large.endswith(f"; at least {2 * MIN_FREE} are needed, twice the database")


def test_what_a_killed_backup_left_in_the_folder_goes_with_the_next_one(data: Path) -> None:
    SqliteStore.open(data / "postroom.db").close()
    folder = data / "backups"
    folder.mkdir()
    for ending in ("", ".partial", ".partial-journal", ".partial.lock"):
        (folder / f"postroom-x.copy{ending}").write_bytes(b"half")
    (folder / "mine.copy").write_bytes(b"theirs")
    assert main(["backup"]) == 0
    assert [path.name for path in folder.iterdir() if ".copy" in path.name] == ["mine.copy"]


def test_doctor_without_a_server_tells_the_messages_whose_texts_changed_on_the_disk(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill(store: SqliteStore) -> None:
        here = await an_office(store)
        await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))

    assert main(["doctor"]) == 1
    assert "unknown messages: messages were not verified" in capsys.readouterr().out
    with closing(SqliteStore.open(data / "postroom.db")) as store:
        asyncio.run(fill(store))
    for words in (["doctor"], ["doctor", "--full"]):
        main(words)
        assert "ok      messages: no text changed after it was stored" in capsys.readouterr().out
    with closing(sqlite3.connect(data / "postroom.db")) as connection, connection:
        connection.execute("DROP TRIGGER messages_reindexed")
        connection.execute("UPDATE messages SET body_md = body_md || '!'")
    for words in (["doctor"], ["doctor", "--full"]):
        assert main(words) == 1
        assert "failed  messages: the texts of 1 messages changed on the disk: 1" in capsys.readouterr().out
