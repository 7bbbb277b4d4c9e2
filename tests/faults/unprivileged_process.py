"""Run as a separate process, which gives up the rights of root: opens a database, prints the outcome and the remedy."""

import importlib.readers  # noqa: F401 - what Python loads on use may be readable for root alone
import os
import sys
from pathlib import Path

from postroom.contracts.errors import PostroomError
from postroom.stores.sqlite import SqliteStore

NOBODY = 65_534


if __name__ == "__main__":
    if os.geteuid() == 0:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        SqliteStore.open(Path(sys.argv[1]), purpose="trying").close()
    except PostroomError as error:
        sys.stdout.write(f"{error.code}: {error.remedy}")
    else:
        sys.stdout.write("opened")
