"""A full disk, and failed writes: no acknowledged data is lost."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from postroom.contracts.errors import StoreReadOnly
from postroom.stores.sqlite import SqliteStore

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent)}
PATIENCE = 120


def run(program: str, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, str(HERE / program), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=ENVIRONMENT,
    )


def opened_in(folder: Path) -> set[str]:
    """Return the names of the files of a folder that this process has open."""
    paths = [Path(file.path) for file in psutil.Process().open_files()]
    return {path.name for path in paths if path.parent == folder}


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that another user reaches: pytest makes its own private, again at each of its starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_closed_store_leaves_none_of_its_files_open(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "postroom.db")
    assert "postroom.db" in opened_in(tmp_path)
    store.close()
    assert opened_in(tmp_path) == set()


@pytest.mark.parametrize("forbidden", ["file", "folder", "both"])
def test_what_cannot_be_written_is_refused_at_once(forbidden: str, reachable: Path) -> None:
    path = reachable / "postroom.db"
    SqliteStore.open(path).close()
    for entry in reachable.iterdir():
        entry.chmod(0o666)
    path.chmod(0o444 if forbidden != "folder" else 0o666)
    reachable.chmod(0o555 if forbidden != "file" else 0o777)
    found = run("unprivileged_process.py", str(path))
    reachable.chmod(0o755)
    assert (found.stdout.partition(":")[0], found.stderr) == ("store_read_only", "")


def test_each_file_that_cannot_be_written_is_named(reachable: Path) -> None:
    path = reachable / "postroom.db"
    SqliteStore.open(path).close()
    for entry in reachable.iterdir():
        entry.chmod(0o666)
    path.chmod(0o444)
    first = run("unprivileged_process.py", str(path)).stdout
    assert not list(reachable.glob("postroom.db-*")), "they would have the rights of the database"
    beside = [path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm")]
    for entry in beside:
        entry.touch()
        entry.chmod(0o444)
    second = run("unprivileged_process.py", str(path)).stdout
    for entry in (path, *beside):
        entry.chmod(0o666)
    third = run("unprivileged_process.py", str(path)).stdout
    assert f" {path}`" in first
    assert all(f" {entry}`" in second for entry in (path, *beside))
    assert third == "opened"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreReadOnly) as refused:
        SqliteStore.open(tmp_path / "file" / "deeper" / "postroom.db")
    assert refused.value.value == str(tmp_path / "file" / "deeper")


def small_disk(size: str, folder: Path) -> tuple[str, ...]:
    """Return what to put before a command so that the folder is a disk; its processes end with it."""
    alone = (
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    )
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system of its own")
    script = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    return (*alone, "sh", "-c", script, str(folder))


def on_a_small_disk(size: str, program: str, folder: Path, *more: str) -> Any:
    found = run(program, str(folder), *more, before=small_disk(size, folder))
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_a_program_that_is_cut_off_on_a_small_disk_leaves_no_process(tmp_path: Path) -> None:
    script = "sleep 600 & echo begun; wait"
    with subprocess.Popen(
        [*small_disk("1m", tmp_path), "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as begun:
        assert begun.stdout is not None
        assert begun.stdout.readline() == "begun\n"
        begun.kill()
        assert begun.stdout.read() == "", "nobody is left who could write"


def test_a_disk_that_is_really_full_loses_nothing_acknowledged(tmp_path: Path) -> None:
    seen = on_a_small_disk("2m", "filling_process.py", tmp_path)
    assert seen["sent"]
    assert seen["found"] == [*seen["sent"], seen["afterwards"]]
    assert seen["wrong"] == []


def test_a_write_that_was_refused_for_want_of_room_is_told_until_there_is_room(tmp_path: Path) -> None:
    """Small writes always fit: the report does not change between checks.

    They do with 580,000 to 700,000 bytes at first; with other sizes of the rows it may be others.
    """
    seen = on_a_small_disk("12m", "refusing_process.py", tmp_path, "300000", "640000")
    assert seen["before"] == "ok"
    assert (seen["looks"], seen["later"]) == (["store_full"] * 5, ["store_full"] * 5)
    assert seen["small"] == ["ok"] * 5, "else the probe's own row would not have fitted either"
    assert (seen["freed"], seen["files"]) == (
        ["ok"] * 3,
        [
            "postroom.db",
            "postroom.db-shm",
            "postroom.db-wal",
            "postroom.db.generation",
            "postroom.db.lock",
            "postroom.db.owner.json",
        ],
    ), "nothing is left of the looks"


def test_a_large_write_that_is_refused_is_told_as_well(tmp_path: Path) -> None:
    """There is more free space than the first check asks for; each refusal after a check doubles the amount."""
    seen = on_a_small_disk("12m", "refusing_process.py", tmp_path, "3000000", "1500000")
    assert seen["again"] == "store_full"
    assert seen["later"][-1] == "store_full"
    assert seen["freed"] == ["ok"] * 3


def test_deletion_goes_on_in_the_room_that_the_log_has(tmp_path: Path) -> None:
    """It needs at most the log, which is folded into the file when the disk takes nothing more."""
    seen = on_a_small_disk("32m", "pruning_process.py", tmp_path, "600000")
    assert seen == {"full": 600, "freed": 0, "kept": True, "left": 5, "wrong": []}


def test_deletion_without_any_room_is_told_and_goes_on_with_room(tmp_path: Path) -> None:
    seen = on_a_small_disk("32m", "pruning_process.py", tmp_path, "0")
    assert seen == {"full": "store_full", "freed": 600, "kept": True, "left": 5, "wrong": []}


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_server_that_starts_on_a_full_disk_reads_and_writes_again_with_room(
    how: str, tmp_path: Path
) -> None:
    """After an orderly stop there is no log and nothing that connections share, and no room to make it."""
    seen = on_a_small_disk("8m", "starting_process.py", tmp_path, how)
    assert (seen["health"], seen["exit"], seen["read"], seen["refused"]) == (200, None, 200, [400])
    assert (seen["checks"]["log"], seen["store"], seen["with_room"]) == ("failed", "store_full", 200)
    assert seen["pages"] == [200, 200]
    assert seen["note"], "the commands of this machine find the server once there is room"
