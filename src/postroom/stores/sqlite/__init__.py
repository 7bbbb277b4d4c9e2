"""The embedded store: one SQLite file, a writer thread that groups changes, and a few readers."""

from postroom.stores.sqlite.connection import sqlite_release
from postroom.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "sqlite_release"]
