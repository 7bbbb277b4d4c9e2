"""Run as a separate process: opens a database, reports the result, and holds it until the input ends."""

import sys
from pathlib import Path

from postroom.contracts.errors import StoreHeld
from postroom.stores.sqlite import SqliteStore

if __name__ == "__main__":
    store = None
    try:
        store = SqliteStore.open(Path(sys.argv[1]))
        sys.stdout.write("opened\n")
    except StoreHeld:
        sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()
    if store is not None:
        store.close()
