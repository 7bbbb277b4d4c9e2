"""The guard of `conftest.py` sees our own code wait for the disk on a thread that runs an event loop."""

from pathlib import Path

import pytest
from blockbuster import BlockingError

from postroom.stores.sqlite import SqliteStore


async def test_opening_a_file_on_the_event_loop_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(BlockingError):
        SqliteStore.open(tmp_path / "postroom.db")


def test_opening_a_file_elsewhere_is_fine(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path / "postroom.db").close()
