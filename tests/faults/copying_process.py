"""Run as a separate process: begins a backup and is killed in the middle of it, as by a power cut."""

import os
import signal
import sys
import threading
from pathlib import Path

from postroom.stores.sqlite.connection import connect
from postroom.stores.sqlite.copying import back_up


class Deadly(threading.Event):
    """Asked after a piece of the copy whether to stop, it kills the process."""

    def is_set(self) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return True


if __name__ == "__main__":
    connection = connect(Path(sys.argv[1]))
    back_up(connection, Path(sys.argv[2]), stop=Deadly())
