"""The process of a server: another server of the machine sees when it has ended, and waits for no lease."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from postroom.contracts.messages import Json
from postroom.executors.processes.process_runner import has_programs

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


def own_process(programs: Path) -> dict[str, Json]:
    """Return facts by which other servers recognise this process; `programs` is the folder of its runs."""
    return {"machine": _machine(), "pid": os.getpid(), "programs": str(programs)}


def is_gone(about: Mapping[str, Json]) -> bool:
    """Return whether the process that said so of itself has surely ended, with all its programs.

    Return False for a process of another machine, and if another process now has its pid. Blocks.
    """
    machine, pid, programs = about.get("machine"), about.get("pid"), about.get("programs")
    if not machine or machine != _machine() or not isinstance(pid, int) or not isinstance(programs, str):
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        state = b"X"
    return state in (b"Z", b"X") and not has_programs(Path(programs))


def _machine() -> str:
    """Return a text that identifies this machine and its present start, within which pids are unique."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:  # another system than Linux: its leases end by themselves
        return ""
