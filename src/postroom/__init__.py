"""postroom: durable mail, file reservations and runs for a team of AI agents and their people."""

from postroom.version import __version__

__all__ = ["__version__"]
