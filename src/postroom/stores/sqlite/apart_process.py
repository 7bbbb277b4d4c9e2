"""A process, separate from the server, that reads a database and prints the result."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from postroom.contracts import progress
from postroom.contracts.errors import PostroomError, StoreFull
from postroom.stores.sqlite.connection import connect_beside, connect_unshared, translated
from postroom.stores.sqlite.copying import hash_file, refuse_faults
from postroom.stores.sqlite.repairing import faults_of_server

NICENESS: Final = 10
"""The niceness of the process, so that other processes run first.

With the maximum of 19, 1 ms of work took 0.5 s at load 15.
"""


def _faults(database: str) -> list[str]:
    try:
        with translated(), closing(connect_beside(Path(database))) as connection:
            return faults_of_server(connection)
    except StoreFull:  # no process writes in this case
        with translated(), closing(connect_unshared(Path(database))) as connection:
            return faults_of_server(connection)


def _read_back(copy: str) -> str:
    refuse_faults(Path(copy))
    return hash_file(Path(copy))


_WORK: Final[Mapping[str, Callable[[str], object]]] = {"faults": _faults, "read_back": _read_back}


def _end_with_the_server() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _go_on(doing: str, done: int = 0, total: int = 0) -> None:
    sys.stdout.write(f"{json.dumps([doing, done, total])}\n")
    sys.stdout.flush()


def main(work: str, database: str) -> None:
    """Do the work with the name `work` on a database, and print the result as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the server, which decides what happens
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    os.nice(NICENESS)
    try:
        with progress.watched(_go_on):
            fields: Mapping[str, object] = {"done": _WORK[work](database)}
    except PostroomError as error:
        fields = {
            "kind": type(error).__name__,
            "message": error.message,
            "value": str(error.value),
            "remedy": error.remedy,
        }
    sys.stdout.write(json.dumps(fields))
    sys.stdout.flush()
    os._exit(0)  # the thread waits for the server


if __name__ == "__main__":
    main(*sys.argv[1:])
