"""Run as a separate process: sets a client up in a home, perhaps with a fault, and prints the outcome.

setting_up_process.py HOME CLIENT [kill|full|nobody]
"""

import os
import signal
import sys
from pathlib import Path

from clients_room import Room
from postroom.contracts.errors import PostroomError

NOBODY = 65_534
_real_replace = Path.replace


def killed_at_the_rename(self: Path, target: Path) -> Path:
    """End this process with no chance to tidy up, just before a client's file is replaced."""
    if ".postroom-" in self.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return _real_replace(self, target)


def main(home: Path, client: str, fault: str) -> str:
    if fault == "kill":
        Path.replace = killed_at_the_rename  # type: ignore[method-assign,assignment]  # a fault, in a process of its own
    if fault == "nobody" and os.geteuid() == 0:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    if fault == "full":
        (home / "ballast").write_bytes(b"")
        with (home / "ballast").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
    try:
        Room(home).set_up(client)
    except PostroomError as error:
        return error.code
    return "set up"


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""))
