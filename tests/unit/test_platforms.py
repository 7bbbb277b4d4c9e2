"""Code that differs by platform takes the platform as a parameter, and is tested here for the other platforms."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postroom.gateway.spooling import open_plain
from postroom.stores.sqlite.connection import prepare


def test_on_macos_a_commit_and_a_checkpoint_reach_the_disk_past_the_drives_cache(tmp_path: Path) -> None:
    for platform, expected in (("darwin", 1), ("linux", 0)):
        with closing(sqlite3.connect(tmp_path / f"{platform}.db")) as connection:
            prepare(connection, read_only=False, platform=platform)
            for pragma in ("fullfsync", "checkpoint_fullfsync"):
                assert connection.execute(f"PRAGMA {pragma}").fetchone() == (expected,), (platform, pragma)
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_file_is_opened_and_a_link_is_not(tmp_path: Path) -> None:
    file, link, gone = tmp_path / "file", tmp_path / "link", tmp_path / "gone"
    file.write_text("words")
    link.symlink_to(file)
    with os.fdopen(open_plain(file), "rb") as opened:
        assert opened.read() == b"words"
    for refused in (link, gone):
        with pytest.raises(OSError, match=str(refused)):
            open_plain(refused)
