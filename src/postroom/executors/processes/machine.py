"""Finds processes of this machine by group, session, parent or marker, and signals them; psutil sees them.

psutil tells a process from a later one with the same pid by the instant at which it was started.

Everything here blocks for some milliseconds: call it outside of the event loop.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
"""What ends a process for certain. On Windows `os.kill` ends it by any signal: it cannot be asked first."""
_DEAD: Final = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A process as it was seen; `process` is its identity, None when it was not seen."""

    pid: int
    parent: int = 0
    group: int = 0
    session: int = 0
    process: psutil.Process | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which processes to find: the leader's group and session, the marked ones, the known ones."""

    leader: int | None = None
    variables: tuple[tuple[str, str], ...] = ()
    known: frozenset[psutil.Process] = frozenset()
    """Seen before: the system forgets whose child a process was when the parent ends."""

    def includes(self, one: Seen) -> bool:
        """Return whether a process is wanted by itself, and not only as a child of another."""
        if self.leader is not None and self.leader in (one.pid, one.group, one.session):
            return True
        if one.process in self.known:
            return True
        return bool(self.variables) and self._marks(environment_of(one))

    def _marks(self, environment: dict[str, str]) -> bool:
        return all(environment.get(name) == value for name, value in self.variables)


class Machine:
    """Finds processes and signals them, whoever started them."""

    def __init__(self, platform: str = sys.platform) -> None:
        """`platform` says what the system has: Windows has neither groups nor sessions of processes."""
        self.platform = platform

    def find(self, wanted: Wanted) -> tuple[Seen, ...]:
        """Return the living processes and all their descendants; never this process or its parents.

        Raises:
            OSError: the system does not let us look, as without a descriptor left.
        """
        there = {one.pid: one for one in self._all()}
        children: dict[int, list[int]] = {}
        for one in there.values():
            children.setdefault(one.parent, []).append(one.pid)
        spared = _line_of(os.getpid(), there)
        waiting = [pid for pid, one in there.items() if pid not in spared and wanted.includes(one)]
        owned = set(waiting)
        while waiting:
            new = [pid for pid in children.get(waiting.pop(), ()) if pid not in owned and pid not in spared]
            owned.update(new)
            waiting.extend(new)
        return tuple(there[pid] for pid in sorted(owned))

    def look(self, pid: int, *, even_ended: bool = False) -> Seen | None:
        """Return the process that has this pid now; a zombie only with `even_ended`.

        A failed look is raised, so that no living process counts as ended.
        """
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                if not even_ended and process.status() in _DEAD:
                    return None
                group, session = (0, 0) if self.platform == "win32" else (os.getpgid(pid), os.getsid(pid))
                return Seen(pid=pid, parent=process.ppid(), group=group, session=session, process=process)
        except (psutil.Error, ProcessLookupError, PermissionError):
            return None

    def send(self, process: Seen, wish: signal.Signals) -> int | None:
        """Signal the process, and never another that has its pid by now.

        Returns a descriptor that becomes readable when it ends and that the caller closes; None when the
        system has none.

        Raises:
            ProcessLookupError: it is gone.
        """
        descriptor = descriptor_of(process.pid)
        try:
            self._refuse_other(process)
            if descriptor is None:  # a moment lies between look and signal
                os.kill(process.pid, wish)
            else:
                signal.pidfd_send_signal(descriptor, wish)
        except PermissionError:
            return descriptor  # it became another user's; it is reported with those that could not be ended
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        return descriptor

    def reap(self, processes: Iterable[Seen]) -> None:
        """Reap zombies that became children of this process, as the first one of a container."""
        if self.platform == "win32":  # nothing is left of a process there
            return
        for one in processes:
            ended = self.look(one.pid, even_ended=True)
            if ended is not None and ended.process == one.process and ended.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)

    def marked(self, name: str) -> Iterable[dict[str, str]]:
        """Yield the environment of every process that has this variable."""
        for one in self._all():
            if name in (environment := environment_of(one)):
                yield environment

    def kill_group(self, leader: int, wish: signal.Signals = KILL) -> None:
        """Signal all processes of a group; this takes no look and no descriptor.

        Windows has no groups: the process and those that it started are ended.
        """
        if self.platform == "win32":
            _kill_family(leader)
            return
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of the dead
            os.killpg(leader, wish)

    def _all(self) -> Iterable[Seen]:
        # Not `psutil.process_iter`: it keeps what it saw of a process whose number another one has by now.
        return (seen for pid in psutil.pids() if (seen := self.look(pid)) is not None)

    def _refuse_other(self, process: Seen) -> None:
        now = self.look(process.pid)
        if now is None or now.process != process.process:
            raise ProcessLookupError(process.pid)


def started_at(pid: int) -> int:
    """Return when a process was started, in hundredths of a second; 0 when there is no such process.

    The same for every server that asks: setting the wall clock does not change it.
    """
    try:
        seconds: float = psutil.Process(pid).create_time()
    except psutil.Error:
        return 0
    if psutil.LINUX:  # psutil adds the boot time, which follows the wall clock there
        seconds -= psutil.boot_time()
    return round(seconds * 100)


def boot_id() -> str:
    """Return the id of this boot of the system; "" where it has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def descriptor_of(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None when the system has none.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):  # another system than Linux, an old one, or no descriptor is left
        return None


def _kill_family(leader: int) -> None:
    with suppress(psutil.Error):
        first = psutil.Process(leader)
        for one in (first, *first.children(recursive=True)):
            with suppress(psutil.Error):
                one.kill()


def environment_of(one: Seen) -> dict[str, str]:
    """Return the variables of a process; none when they cannot be read."""
    try:
        return {} if one.process is None else dict(one.process.environ())
    except psutil.Error:  # it has ended, or is another user's
        return {}


def _line_of(pid: int, there: dict[int, Seen]) -> frozenset[int]:
    """Return the process, its parents up to the first, and the first process itself."""
    line = {1}
    while pid in there and pid not in line:
        line.add(pid)
        pid = there[pid].parent
    return frozenset(line)
