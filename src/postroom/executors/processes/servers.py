"""Which process a server is: another on the same machine sees that it is gone, and waits for no lease."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from postroom.contracts.messages import Json
from postroom.executors.processes.keeping import is_ending_programs_of

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


def own_process() -> dict[str, Json]:
    """Return what others recognise this process by. Blocks."""
    return {"machine": _machine(), "pid": os.getpid()}


def is_gone(about: Mapping[str, Json]) -> bool:
    """Say whether the process that said so of itself is surely gone; of another machine's nobody knows.

    One whose pid another process has by now counts as there, and one whose programs are still being ended.
    Blocks.
    """
    machine, pid = about.get("machine"), about.get("pid")
    if not machine or machine != _machine() or not isinstance(pid, int):
        return False
    try:
        if psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
    except psutil.NoSuchProcess:
        pass
    return not is_ending_programs_of(pid)


def _machine() -> str:
    """Return what tells this machine, since its start, from others on which pids mean other processes."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:  # another system than Linux: its leases end by themselves
        return ""
