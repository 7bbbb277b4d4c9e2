"""Fixtures for tests of commands."""

from cli_room import bare, fake, folder, run  # noqa: F401 - fixtures
from clients_room import homes, room, rooms  # noqa: F401 - fixtures
