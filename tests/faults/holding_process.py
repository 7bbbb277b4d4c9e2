"""Run as a separate process: owns a database until its input ends, and reports when it does."""

import sys
from pathlib import Path

from postroom.stores.sqlite import SqliteStore

if __name__ == "__main__":
    store = SqliteStore.open(Path(sys.argv[1]), purpose="holding")
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()
    store.close()
