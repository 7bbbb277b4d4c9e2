"""What differs by platform takes the platform as a parameter, and is looked at here for those that are not this one."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroom.cli.watch import hold_alone
from postroom.stores.sqlite.connection import prepare


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
