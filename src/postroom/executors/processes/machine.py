"""Processes of this machine as they are found and ended: by their group, their session and their marker.

On Linux all that a run has started is seen in /proc, those included that made a session of their own. A
process is told from a later one with the same number by the instant it was started at. Where there is no
/proc the group is all that can be ended.

Everything here blocks for some milliseconds: call it outside of the event loop.
"""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

PROC: Final = Path("/proc")
_DEAD: Final = "ZXx"
_READ_BYTES: Final = 256 << 10
_SHOWS_PROCESSES: Final = (PROC / "self/stat").exists() and hasattr(os, "pidfd_open")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A process as it was seen; `started` is counted in ticks since the system's start, 0 is not known."""

    pid: int
    parent: int = 0
    group: int = 0
    session: int = 0
    started: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from every other process, whatever becomes of its parent."""
        return (self.pid, self.started)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which processes: of this leader's group and session, with all of these variables, and those known."""

    leader: int | None = None
    variables: tuple[tuple[str, str], ...] = ()
    since: int = 0
    """No process that was started before can be meant; spares a look into each one's environment."""
    known: frozenset[tuple[int, int]] = frozenset()
    """Seen before, by `Seen.key`: whose child one was is forgotten by the system when the parent ends."""

    def is_marked(self, environment: frozenset[bytes]) -> bool:
        """Say whether an environment has all the variables; none were asked for: no."""
        marks = {os.fsencode(f"{name}={value}") for name, value in self.variables}
        return bool(marks) and marks <= environment


class Machine(Protocol):
    """Finds processes and signals them."""

    @property
    def sees_strangers(self) -> bool:
        """Whether processes are found that this one did not start."""
        ...

    def find(self, wanted: Wanted) -> tuple[Seen, ...]:
        """Return the processes that live, with all that descends from them; never this one or its parents."""
        ...

    def look(self, pid: int, *, even_ended: bool = False) -> Seen | None:
        """Return the process that has this number now; an ended one that nobody has reaped only if asked."""
        ...

    def send(self, process: Seen, wish: signal.Signals) -> int | None:
        """Signal the process, and no other that has its number now.

        Returns a descriptor that can be read when it has ended, and is to be closed; None when the system
        has none to give.

        Raises:
            ProcessLookupError: it is gone.
        """
        ...

    def reap(self, processes: Iterable[Seen]) -> None:
        """Let go of those that have ended and that the system made children of this process."""
        ...


class Proc:
    """A machine with /proc."""

    sees_strangers = True

    def find(self, wanted: Wanted) -> tuple[Seen, ...]:
        """Return the processes that live, with all that descends from them."""
        there = {one.pid: one for one in _all()}
        spared = _line_of(os.getpid(), there)
        owned = {
            pid
            for pid, one in there.items()
            if pid not in spared
            and (
                (wanted.leader is not None and wanted.leader in (one.pid, one.group, one.session))
                or one.key in wanted.known
                or (one.started >= wanted.since and wanted.is_marked(environment_of(pid)))
            )
        }
        waiting = list(owned)
        children: dict[int, list[int]] = {}
        for one in there.values():
            children.setdefault(one.parent, []).append(one.pid)
        while waiting:
            new = [pid for pid in children.get(waiting.pop(), ()) if pid not in owned and pid not in spared]
            owned.update(new)
            waiting.extend(new)
        return tuple(there[pid] for pid in sorted(owned))

    def look(self, pid: int, *, even_ended: bool = False) -> Seen | None:
        """Return the process that has this number now."""
        return _look(pid, even_ended=even_ended)

    def send(self, process: Seen, wish: signal.Signals) -> int | None:
        """Signal the process; the descriptor tells it from a later one with its number."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            raise
        except OSError:  # an old system, or no descriptor is left: a moment lies between look and signal
            _refuse_other(process)
            _quietly(lambda: os.kill(process.pid, wish))
            return None
        try:
            _refuse_other(process)
            signal.pidfd_send_signal(descriptor, wish)
        except PermissionError:
            return descriptor  # it became another user's; it is told of with those that could not be ended
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def reap(self, processes: Iterable[Seen]) -> None:
        """Let go of ended processes that became children of this one: it is the first of its container."""
        for one in processes:
            ended = _look(one.pid, even_ended=True)
            if ended is not None and ended.key == one.key and ended.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)

    def marked(self, name: str) -> Iterable[tuple[Seen, dict[str, str]]]:
        """Yield every process whose environment has this variable, with its environment."""
        prefix = os.fsencode(f"{name}=")
        for one in _all():
            variables = environment_of(one.pid)
            if any(variable.startswith(prefix) for variable in variables):
                pairs = (os.fsdecode(variable).partition("=") for variable in variables)
                yield one, {left: right for left, _, right in pairs}


class GroupOnly:
    """A machine without /proc: a group can be signalled, and asked whether anybody is left in it."""

    sees_strangers = False

    def find(self, wanted: Wanted) -> tuple[Seen, ...]:
        """Return the leader for its group, while anybody is in it."""
        leader = wanted.leader
        if leader is None or not _quietly(lambda: os.killpg(leader, 0)):
            return ()
        return (Seen(pid=leader, group=leader),)

    def look(self, pid: int, *, even_ended: bool = False) -> Seen | None:
        """Nothing is known of a process that this one did not start."""
        return None

    def reap(self, processes: Iterable[Seen]) -> None:
        """Nothing is known of other processes than the leader, whom its starter reaps."""

    def send(self, process: Seen, wish: signal.Signals) -> int | None:
        """Signal the group."""
        _quietly(lambda: os.killpg(process.pid, wish))
        return None


def this_machine() -> Proc | GroupOnly:
    """Return what this system offers."""
    return Proc() if _SHOWS_PROCESSES else GroupOnly()


def boot_id() -> str:
    """Return what tells this start of the system from others; "" where it does not say."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def environment_of(pid: int) -> frozenset[bytes]:
    """Return a process's variables as it was started with them; none where they cannot be read."""
    try:
        return frozenset(_read(f"{PROC}/{pid}/environ").split(b"\0"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is another user's
        return frozenset()


def _all() -> Iterable[Seen]:
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and (seen := _look(int(entry.name))) is not None:
            yield seen


def _look(pid: int, *, even_ended: bool = False) -> Seen | None:
    """Read a process's line; its name may hold anything, brackets and blanks included."""
    try:
        line = _read(f"{PROC}/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # it has ended; what else fails is told, for nobody may be taken to have ended by it
    words = line[line.rfind(b")") + 1 :].split()
    if len(words) < 20 or (words[0].decode() in _DEAD and not even_ended):
        return None
    return Seen(
        pid=pid, parent=int(words[1]), group=int(words[2]), session=int(words[3]), started=int(words[19])
    )


def _read(path: str) -> bytes:
    """Read with as few calls as may be: a thread beside a busy event loop waits for its turn at each."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = [os.read(descriptor, _READ_BYTES)]
        while len(chunks[-1]) == _READ_BYTES:
            chunks.append(os.read(descriptor, _READ_BYTES))
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def _refuse_other(process: Seen) -> None:
    now = _look(process.pid)
    if now is None or now.started != process.started:
        raise ProcessLookupError(process.pid)


def _line_of(pid: int, there: dict[int, Seen]) -> frozenset[int]:
    """Return the process, its parents up to the first, and the first process itself."""
    line = {1}
    while pid in there and pid not in line:
        line.add(pid)
        pid = there[pid].parent
    return frozenset(line)


def _quietly(act: Callable[[], None]) -> bool:
    try:
        act()
    except (ProcessLookupError, PermissionError):  # none of them is left; macOS says the latter of the dead
        return False
    return True
