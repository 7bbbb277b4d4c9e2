"""Keeps a copy as a backup beside a server: in a process of its own, for which everybody else goes first.

Packing takes a processor for a while. In a thread of the server it would take turns with every call at
Python's lock; here it has what the machine has left. The process ends with the server, whose pipe it reads.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from postroom.contracts import errors, progress
from postroom.contracts.errors import PostroomError, StoreUnavailable
from postroom.stores.sqlite import page_backups
from postroom.stores.sqlite.copying import refuse_faults

_LEAST_IMPORTANT: Final = 19
_IDLE_PRIORITY_CLASS: Final = 0x40
"""Of Windows, where a process begins with its priority."""


async def keep_apart(copy: Path, target: Path, *, now: int) -> None:
    """Read a whole copy of a database back, and keep it as a backup that shares pages with those before it.

    Cancelled, it ends the process, which leaves what was there before.

    Raises:
        StoreError: the copy does not read back, or the backup cannot be written; nothing changed.
        StateError: another process makes or removes backups.
    """
    words = (sys.executable, "-m", "postroom.stores.sqlite.packing", str(copy), str(target), str(now))
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        creationflags=flags_of(sys.platform),
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - pipes were asked for
    try:
        said = b""
        async for told in process.stdout:
            said = _heard(told)
    finally:
        process.stdin.close()
        code = await process.wait()
    if code or said:
        raise _failure(said, code)


def _heard(told: bytes) -> bytes:
    """Pass on how far the process is; return anything else."""
    if not told.startswith(b"["):
        return told
    doing, done, total = json.loads(told)
    progress.tell(doing, done, total)
    return b""


def flags_of(platform: str) -> int:
    """Return with which flags the process is begun, so that it takes what others leave."""
    return _IDLE_PRIORITY_CLASS if platform == "win32" else 0


def step_back(*, platform: str = sys.platform) -> None:
    """Let every other process go first; on Windows it was begun so."""
    if platform != "win32":
        os.nice(_LEAST_IMPORTANT)


def _failure(said: bytes, code: int) -> PostroomError:
    if not said:
        return StoreUnavailable(f"the process that keeps the backup ended with {code}; it is tried again")
    told = json.loads(said)
    kind: type[PostroomError] = getattr(errors, told["kind"])
    return kind(told["message"], value=told["value"], remedy=told["remedy"])


def _end_with_the_server() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main(copy: Path, target: Path, now: int) -> None:
    """Keep the copy; print what went wrong, if anything did."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which decides
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    step_back()
    try:
        with progress.watched(_go_on):
            refuse_faults(copy, target)
            page_backups.keep(copy, target, now=now)
    except PostroomError as error:
        _tell(error)
    sys.stdout.flush()
    os._exit(0)  # the thread waits for the server


def _go_on(doing: str, done: int = 0, total: int = 0) -> None:
    sys.stdout.write(f"{json.dumps([doing, done, total])}\n")
    sys.stdout.flush()


def _tell(error: PostroomError) -> None:
    told = {
        "kind": type(error).__name__,
        "message": error.message,
        "value": str(error.value),
        "remedy": error.remedy,
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
