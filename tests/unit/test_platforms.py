"""What differs by platform takes the platform as a parameter, and is looked at here for those that are not this one."""

import sqlite3
from contextlib import closing
from pathlib import Path

from postroom.stores.sqlite.connection import prepare


def test_on_macos_a_commit_and_a_checkpoint_reach_the_disk_past_the_drives_cache(tmp_path: Path) -> None:
    for platform, expected in (("darwin", 1), ("linux", 0), ("win32", 0)):
        with closing(sqlite3.connect(tmp_path / f"{platform}.db")) as connection:
            prepare(connection, read_only=False, platform=platform)
            for pragma in ("fullfsync", "checkpoint_fullfsync"):
                assert connection.execute(f"PRAGMA {pragma}").fetchone() == (expected,), (platform, pragma)
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
