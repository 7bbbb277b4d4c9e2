"""Lets only one process own a database file or a folder, by a system lock that ends with the process."""

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
    "only one process at a time can open a SQLite file: use that process, stop it first, or use PostgreSQL "
    "(postgresql://...), which several processes can share"
)


class OwnerLock:
    """A lock that only one process can hold, on a database file or a folder."""

    def __init__(self, path: Path, *, of: Path | None = None) -> None:
        """Use a lock file next to `path`; error messages name `of` if given."""
        from filelock import FileLock  # a store in memory needs no lock and no slow import

        self._path, self._of = path, of or path
        # A soft lock is worse than none: it can survive its holder and would then lock the owner out.
        self._lock = FileLock(
            f"{path}.lock", mode=0o600, blocking=False, thread_local=False, fallback_to_soft=False
        )
        self._note = path.with_name(path.name + ".owner.json")

    def acquire(self, *, now: int, purpose: str) -> None:
        """Acquire the lock, and describe this process in a note next to the database.

        Raises:
            StoreHeld: Another process holds the lock; the error names the process, its start time and its
                purpose.
            StoreReadOnly, StoreFull: The lock, or the note next to the database, cannot be written.
        """
        from filelock import Timeout

        note = {"pid": os.getpid(), "since": iso(now), "purpose": purpose}
        try:
            self._lock.acquire()
        except Timeout:
            holder = read_owner(self._path)
            who = (
                "process {pid} ({purpose}, since {since})".format_map(holder) if holder else "another process"
            )
            remedy = _OF_A_PROGRAM if holder.get("purpose") == "program" else None
            raise StoreHeld(
                f"{self._of} is in use by {who}", value=str(self._of), remedy=remedy, details=holder
            ) from None
        except OSError as error:
            self.release()
            refuse_no_file(Path(self._lock.lock_file), "lock")
            raise file_error(error, self._of) from error
        self._give_to_owner()
        try:
            self._note.unlink(missing_ok=True)  # the note of a killed holder has the old mode
            with os.fdopen(os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(json.dumps(note))
        except OSError as error:
            failure = file_error(error, self._of)
            if not isinstance(failure, StoreFull):  # the lock is valid even without the note
                self.release()
                raise failure from error

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # a stale note does no harm, because only the lock counts
                self._note.unlink(missing_ok=True)
            self._lock.release()

    def _give_to_owner(self) -> None:
        """Give the lock file to the owner of the folder, if this process runs as root."""
        # The lock file is never deleted, because two processes could then hold the lock. The folder's owner
        # could have put a link to another file in its place. Therefore the owner of the opened file is
        # changed, and only if the file is empty and has no other hard links.
        if os.geteuid() != 0:
            return
        lock = Path(self._lock.lock_file)
        # on a network disk, root may not own files; the lock is valid nevertheless
        with contextlib.suppress(OSError):
            file = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                value, folder = os.fstat(file), lock.parent.stat()
                is_ours = stat.S_ISREG(value.st_mode) and value.st_nlink == 1 and value.st_size == 0
                if is_ours and value.st_uid == 0 != folder.st_uid:
                    os.fchown(file, folder.st_uid, folder.st_gid)
            finally:
                os.close(file)


def read_owner(path: Path) -> dict[str, Any]:
    """Return the stored description of the process that holds a database, or an empty dictionary."""
    try:
        note = json.loads(path.with_name(path.name + ".owner.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) and {"pid", "since", "purpose"} <= note.keys() else {}
