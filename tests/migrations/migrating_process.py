"""Run as a separate process: applies the steps in the named files, which may `wait()` in the middle."""

import sys
from pathlib import Path

from postroom.stores.migrations import Migration
from postroom.stores.sqlite.connection import connect
from postroom.stores.sqlite.migrate import migrate


def wait() -> None:
    """Report that the middle of a step was reached, and wait there until the input ends."""
    sys.stdout.write("in the middle\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    database, *files = (Path(argument) for argument in sys.argv[1:])
    steps = [
        Migration(version=number, name=file.stem, sql=file.read_text(encoding="utf-8"))
        for number, file in enumerate(files, start=1)
    ]
    connection = connect(database)
    connection.create_function("wait", 0, wait)
    migrate(connection, database, now=1, steps=steps)
