"""What differs by platform takes the platform as a parameter, and is looked at here for those that are not this one."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroom.app import check_results, gateway_secrets, privacy, tokens
from postroom.app.config import tells_case_apart
from postroom.cli import start
from postroom.cli.watch import hold_alone
from postroom.contracts.errors import ConfigError
from postroom.gateway.spooling import open_plain
from postroom.mail.archive import git
from postroom.stores.sqlite import apart, apart_process
from postroom.stores.sqlite.connection import prepare
from postroom.stores.sqlite.copying import sync_folder


def test_on_macos_a_commit_and_a_checkpoint_reach_the_disk_past_the_drives_cache(tmp_path: Path) -> None:
    for platform, expected in (("darwin", 1), ("linux", 0), ("win32", 0)):
        with closing(sqlite3.connect(tmp_path / f"{platform}.db")) as connection:
            prepare(connection, read_only=False, platform=platform)
            for pragma in ("fullfsync", "checkpoint_fullfsync"):
                assert connection.execute(f"PRAGMA {pragma}").fetchone() == (expected,), (platform, pragma)
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


HIDDEN = """
import importlib, os, pkgutil, signal, sys
import filelock, mcp.client.stdio, mcp.server, psutil, typer, uvicorn  # they decide by sys.platform
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "killpg", "setsid", "geteuid", "getuid", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGSTOP", "SIGCONT", "SIGCHLD", "SIGQUIT"):
    delattr(signal, name)
import postroom
for found in pkgutil.walk_packages(postroom.__path__, "postroom."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""


@pytest.mark.long
def test_every_module_is_imported_where_what_only_unix_has_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Windows:
    """What `msvcrt` is asked for."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def locking(self, descriptor: int, mode: int, size: int) -> None:
        self.asked.append((os.lseek(descriptor, 0, os.SEEK_CUR), mode, size))


def test_who_waits_to_be_woken_holds_its_place_alone_on_windows_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Windows()
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with (tmp_path / "wake").open("a+") as first, (tmp_path / "wake").open("a+") as second:
        hold_alone(first.fileno(), platform="win32")
        assert windows.asked == [(1 << 20, Windows.LK_NBLCK, 1)]
        hold_alone(first.fileno(), platform="linux")
        with pytest.raises(BlockingIOError):
            hold_alone(second.fileno(), platform="linux")


def test_a_file_is_opened_and_a_link_is_not_on_every_system(tmp_path: Path) -> None:
    file, link, gone = tmp_path / "file", tmp_path / "link", tmp_path / "gone"
    file.write_text("words")
    link.symlink_to(file)
    for platform in ("linux", "darwin", "win32"):
        with os.fdopen(open_plain(file, platform=platform), "rb") as opened:
            assert opened.read() == b"words"
        for refused in (link, gone):
            with pytest.raises(OSError, match=str(refused)):
                open_plain(refused, platform=platform)


def test_where_files_have_no_modes_their_folders_lists_protect_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.write_text("x")
    shared.chmod(0o644)
    found = shared.stat()
    table = gateway_secrets.Table(shared, "")
    told = [privacy._is_shared(shared, platform=one) for one in ("linux", "darwin", "win32")]
    assert told == [True, True, False]

    def check(platform: str) -> None:
        tokens._check_private(shared, found, platform=platform)

    def check_secret(platform: str) -> None:
        gateway_secrets._check_private(table, "a setting", shared, found, platform=platform)

    for look in (check, check_secret):
        look("win32")
        for platform in ("linux", "darwin"):
            with pytest.raises(ConfigError, match="can be used by other users"):
                look(platform)


def test_a_folder_is_synced_where_it_can_be_opened(tmp_path: Path) -> None:
    sync_folder(tmp_path / "gone", platform="win32")
    for platform in ("linux", "darwin"):
        sync_folder(tmp_path, platform=platform)
        with pytest.raises(FileNotFoundError):
            sync_folder(tmp_path / "gone", platform=platform)


class Asked:
    """A process that is ended, or left alone."""

    def __init__(self, pid: int = 0) -> None:
        self.pid, self.killed = pid, False

    def kill(self) -> None:
        self.killed = True


def test_where_there_are_no_groups_of_processes_a_program_is_ended_alone() -> None:
    process = Asked()
    git._end(process, platform="win32")  # type: ignore[arg-type]
    assert process.killed
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as group:
        git._end(group, platform="linux")
    assert group.returncode == -signal.SIGTERM


def test_how_processes_are_begun_and_kept_private_differs_by_system() -> None:
    systems = ("linux", "darwin", "win32")
    assert [start.apart_on(one) for one in systems] == [0, 0, 0x208]
    assert [apart.flags_of(one) for one in systems] == [0, 0, 0x40]
    assert [git.umask_of(one) for one in systems] == [0o077, 0o077, -1]
    assert [tells_case_apart(one) for one in systems] == [True, False, False]


def test_priority_and_limits_are_asked_of_the_system_where_it_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[int] = []
    monkeypatch.setattr(os, "nice", stepped.append)
    for platform in ("linux", "darwin", "win32"):
        apart_process.step_back(platform=platform)
    assert stepped == [10, 10]
    assert check_results.most_descriptors(platform="win32") is None
    assert check_results.most_descriptors(platform="linux") != 0
