"""Run as a process of its own: makes a backup again and again, killed at one step on the disk after another.

Prints after which step the first of them came to its end, and what was wrong with the backups after a kill.
"""

import json
import os
import signal
import sys
from pathlib import Path

from postroom.stores.sqlite import page_backups
from postroom.stores.sqlite.page_backups import About

STEPS = {"open", "os.rename", "os.remove", "os.mkdir"}
"""What a process does to files, as Python tells before it is done."""


def kill_at(step: int, folder: Path) -> None:
    """Have this process killed before the n-th step in a folder."""
    seen = 0

    def hook(event: str, given: tuple[object, ...]) -> None:
        nonlocal seen
        if event in STEPS and str(given[0]).startswith(str(folder)):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def back_up(copy: Path, folder: Path) -> None:
    with page_backups.folder_lock(folder):
        page_backups.add(copy, folder / "second.backup", About(2, 1, "id"))
        page_backups.sweep(folder)


def main(copy: Path, folder: Path) -> None:
    """Kill it before the first step, the second and so on, until it comes to its end."""
    wrong: list[str] = []
    step, status = 0, 1
    while status:
        step += 1
        child = os.fork()
        if not child:
            kill_at(step, folder)
            back_up(copy, folder)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        for path in folder.glob("*.backup"):
            try:
                page_backups.assemble(path)
            except Exception as error:
                wrong.append(f"step {step}: {path.name}: {error}")
        if not (folder / "first.backup").exists():
            wrong.append(f"step {step}: the first is gone")
    print(json.dumps({"steps": step, "wrong": wrong, "left": sorted(one.name for one in folder.iterdir())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
