"""At every moment of a client's setup, its file is the old one or the new one, and setup can continue."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clients_room import Room
from machine import PATIENCE
from postroom.app.clients import files
from postroom.contracts.errors import ClientFileRefused, VersionConflict

PROGRAM = Path(__file__).with_name("setting_up_process.py")
TESTS = PROGRAM.parents[1]
OLD = '{"mcpServers":   {"harbour": {"command": "x"}}} '
SETTINGS = '{"model": "opus"}'


@pytest.fixture
def room(tmp_path: Path) -> Room:
    (tmp_path / "home").mkdir()
    made = Room(tmp_path / "home")
    made.write(".claude.json", OLD)
    made.write(".claude/settings.json", SETTINGS)
    return made


def words(*arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAM), *arguments]


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS)}


def run(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *words(*arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=surroundings(),
    )


def test_a_rename_that_fails_leaves_both_files_and_no_trace(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second file's rename fails: the first one, which was written, is given back."""
    before = room.tree()
    real = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if self.name.startswith(".settings.json.postroom-"):
            raise OSError(errno.EIO, "the disk is broken", str(self))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(ClientFileRefused, match="the disk is broken"):
        room.set_up("claude")
    assert room.tree() == before
    monkeypatch.undo()
    room.set_up("claude")
    assert room.drifts("claude") == []
    room.take_out("claude")
    assert room.tree() == before


def test_a_file_that_was_made_before_the_failure_goes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    room = Room(tmp_path / "home")
    real = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if self.name.startswith(".hooks.json.postroom-"):
            raise OSError(errno.ENOSPC, "no space left", str(self))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(ClientFileRefused, match="no space left") as told:
        room.set_up("codex")
    assert told.value.remedy.startswith(f"free space on the disk of {room.home}/.codex")
    assert room.tree() == {}


@pytest.mark.parametrize("existing", [True, False])
def test_a_kill_between_backup_and_rename_leaves_the_old_file(existing: bool, room: Room) -> None:
    if not existing:
        (room.home / ".claude.json").unlink()
    before = room.tree()
    found = run(str(room.home), "claude", "kill")
    assert found.returncode == -9, found.stderr
    left = room.tree()
    assert left.get(".claude.json") == before.get(".claude.json")
    backups = [content for name, content in left.items() if name.startswith(".claude.json.postroom-backup")]
    assert backups == [OLD.encode()] * existing
    assert run(str(room.home), "claude").stdout == "set up"
    assert room.drifts("claude") == []
    room.take_out("claude")
    assert room.tree() == before


def test_after_a_kill_the_folders_that_were_made_are_known(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    room = Room(tmp_path / "home")
    run(str(room.home), "omp", "kill")
    assert ".omp/agent" in room.tree()
    room.set_up("omp")
    room.take_out("omp")
    assert room.tree() == {}


def test_a_kill_and_then_remove_changes_nothing(room: Room) -> None:
    run(str(room.home), "claude", "kill")
    room.take_out("claude")
    assert room.read(".claude.json") == OLD


def test_a_file_that_a_person_made_after_a_kill_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    room = Room(tmp_path / "home")
    run(str(room.home), "cline", "kill")
    room.write(".cline/mcp.json", "{}")
    room.set_up("cline")
    room.take_out("cline")
    assert room.read(".cline/mcp.json") == "{}"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("shut")
    for above in (folder, *folder.parents[:3]):
        above.chmod(above.stat().st_mode | 0o055)
    data = folder / "home-data"
    data.mkdir()
    data.chmod(0o777)
    home = folder / "home"
    home.mkdir()
    (home / ".claude.json").write_text(OLD)
    (home / ".claude.json").chmod(0o666)
    home.chmod(0o555)
    found = run(str(home), "claude", "nobody")
    home.chmod(0o755)
    assert (found.stdout, found.stderr) == ("client_file_refused", "")
    assert Room(home).tree() == {".claude.json": OLD.encode()}


def test_a_disk_that_is_really_full_leaves_the_old_file(tmp_path: Path) -> None:
    mounting = ("unshare", "--user", "--map-root-user", "--mount")
    if (
        not shutil.which("unshare")
        or subprocess.run([*mounting, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine lets nobody mount a file system of its own")
    home = tmp_path / "home"
    home.mkdir()
    script = (
        'mount -t tmpfs -o size=64k tmpfs "$0" && printf %s "$1" > "$0/.claude.json" && shift && "$@" '
        '&& rm "$0/ballast" && echo && ls -A "$0" && cat "$0/.claude.json"'
    )
    found = run(str(home), "claude", "full", before=(*mounting, "sh", "-c", script, str(home), OLD))
    assert found.stdout.splitlines() == ["client_file_refused", ".claude.json", OLD], found.stderr


def test_a_disk_that_is_full_at_a_later_file_shows_before_an_earlier_one_is_changed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space that a full disk lacks for giving a file back."""
    before = room.tree()
    renamed = []
    real_write, real_replace = files._write_new, Path.replace

    def write(target: Path, content: bytes, **how: Any) -> None:
        if target.name.startswith(".settings.json.postroom-draft-"):
            raise OSError(errno.ENOSPC, "no space left", str(target))
        real_write(target, content, **how)

    def replace(self: Path, target: Path) -> Path:
        renamed.append(Path(target).name)
        return real_replace(self, target)

    monkeypatch.setattr(files, "_write_new", write)
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(ClientFileRefused, match="no space left"):
        room.set_up("claude")
    assert room.tree() == before
    assert ".claude.json" not in renamed


def test_many_at_once_write_one_entry_and_one_backup(room: Room) -> None:
    before = room.tree()
    running = [
        subprocess.Popen(
            words(str(room.home), "claude"), stdout=subprocess.PIPE, text=True, env=surroundings()
        )
        for _ in range(4)
    ]
    assert [one.communicate(timeout=PATIENCE)[0] for one in running] == ["set up"] * 4
    assert room.read(".claude.json").count('"postroom": {') == 1
    assert len([name for name in room.tree() if "backup" in name]) == 2
    assert room.drifts("claude") == []
    room.take_out("claude")
    assert room.tree() == before


def test_what_a_client_writes_in_between_is_never_lost(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client writes its file after setup read it: setup looks again."""
    theirs = '{"numStartups": 1}'
    real, written = files.require_unchanged, []

    def client_writes(found: files.Found) -> None:
        if not written:
            written.append(room.write(".claude.json", theirs))
        real(found)

    monkeypatch.setattr(files, "require_unchanged", client_writes)
    room.set_up("claude")
    assert json.loads(room.read(".claude.json"))["numStartups"] == 1
    room.take_out("claude")
    assert room.read(".claude.json") == theirs


def test_a_client_that_never_stops_writing_is_told(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = files.require_unchanged, iter(range(1000))

    def client_writes(found: files.Found) -> None:
        room.write(".claude.json", f'{{"numStartups": {next(count)}}}')
        real(found)

    monkeypatch.setattr(files, "require_unchanged", client_writes)
    with pytest.raises(VersionConflict) as told:
        room.set_up("claude")
    assert told.value.retryable
    assert "postroom" not in room.read(".claude.json")
    assert [name for name in room.tree() if "postroom" in name] == []
