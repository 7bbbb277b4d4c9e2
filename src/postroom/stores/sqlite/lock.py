"""One process owns a database file, or a folder: a lock of the operating system that dies with its holder."""

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from postroom.contracts.clock import iso
from postroom.contracts.errors import StoreFull, StoreHeld
from postroom.stores.sqlite.connection import file_error, refuse_no_file

_OF_A_PROGRAM = (
    "only one process at a time can open a SQLite file: use that process, end it first, or use "
    "PostgreSQL (postgresql://...), which several processes can share"
)


class OwnerLock:
    """Held from opening to closing; the file beside it only says who the holder is."""

    def __init__(self, path: Path, *, of: Path | None = None) -> None:
        """The lock stands beside `path`; it is that of `of`, where `path` itself is nothing."""
        from filelock import FileLock  # a store in memory needs no lock, and waits for none to load

        self._path, self._of = path, of or path
        # A lock that stays behind when its holder dies would shut the owner out: rather none at all.
        self._lock = FileLock(
            f"{path}.lock", mode=0o600, blocking=False, thread_local=False, fallback_to_soft=False
        )
        self._note = path.with_name(path.name + ".owner.json")

    def acquire(self, *, now: int, purpose: str) -> None:
        """Take the lock.

        Raises:
            StoreHeld: another process has it; says which, since when and what for.
            StoreReadOnly, StoreFull: the lock cannot be made, or the note beside the database not be written.
        """
        from filelock import Timeout

        note = {"pid": os.getpid(), "since": iso(now), "purpose": purpose}
        try:
            self._lock.acquire()
        except Timeout:
            raise self._held() from None
        except OSError as error:
            self.release()
            refuse_no_file(Path(self._lock.lock_file), "lock")
            raise file_error(error, self._of) from error
        self._give_to_owner()
        try:
            self._write(json.dumps(note))
        except OSError as error:
            failure = file_error(error, self._of)
            if not isinstance(failure, StoreFull):  # without the note the lock counts as well
                self.release()
                raise failure from error

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # a note that stays behind is harmless: only the lock counts
                self._note.unlink(missing_ok=True)
            self._lock.release()

    def _give_to_owner(self) -> None:
        """As root, give the lock to whom its folder belongs: `sudo postroom doctor` would shut that user out.

        The lock stays, as it always does: to remove it would let two have it. Whoever owns the folder might
        have put a link to another file there: a lock is empty, and has one name. What was looked at is what
        is given, though another may have its name by then.
        """
        if os.geteuid() != 0:
            return
        lock = Path(self._lock.lock_file)
        with contextlib.suppress(OSError):  # on a network disk root may own nothing: the lock counts as well
            file = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                found, folder = os.fstat(file), lock.parent.stat()
                is_ours = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size == 0
                if is_ours and found.st_uid == 0 != folder.st_uid:
                    os.fchown(file, folder.st_uid, folder.st_gid)
            finally:
                os.close(file)

    def _write(self, note: str) -> None:
        self._note.unlink(missing_ok=True)  # one that a killed holder left keeps the mode it had
        with os.fdopen(os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(note)

    def _held(self) -> StoreHeld:
        note = read_owner(self._path)
        who = "process {pid} ({purpose}, since {since})".format_map(note) if note else "another process"
        remedy = _OF_A_PROGRAM if note.get("purpose") == "program" else None
        return StoreHeld(f"{self._of} is in use by {who}", value=str(self._of), remedy=remedy, details=note)


def read_owner(path: Path) -> dict[str, Any]:
    """Return what the holder of a database said of itself; empty when nobody did."""
    try:
        note = json.loads(path.with_name(path.name + ".owner.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) and {"pid", "since", "purpose"} <= note.keys() else {}
