"""Applies to all tests of executors."""

from collections.abc import Iterator

import pytest

from executors.room import Room


@pytest.fixture(autouse=True)
def no_launcher_is_left() -> Iterator[None]:
    """Close the launchers of all rooms, so that each test counts its own descriptors only."""
    yield
    while Room.made:
        Room.made.pop().executor.process_runner.launcher.close()
