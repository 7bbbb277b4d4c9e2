"""A check that the files of an open database are in their place, and unchanged by others.

On Unix a process can still write to an open file that was deleted or replaced; its contents disappear when
the process ends. Therefore each commit checks first: earlier commits remain readable, and new ones are
refused.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from postroom.contracts.clock import Clock
from postroom.contracts.errors import WrongStore
from postroom.log import get_logger
from postroom.stores.sqlite.connection import file_error
from postroom.stores.sqlite.generations import Generations

_LOG = get_logger(__name__)
_HEADER: Final = 100
"""Bytes at the start of a database with its size, its schema and its change counter."""


class OwnFiles:
    """The database and its log as this process opened them."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Hold the file open; `refuse_changed` accepts any state until `note` was called.

        Raises:
            StoreError: The file cannot be opened.
        """
        self._path, self._log, self._clock = path, path.with_name(f"{path.name}-wal"), clock
        self._checkpoint = threading.Lock()
        """Held while a checkpoint writes to the file, because readers check from their own threads."""
        try:
            # Held to the end: closing it would end the locks that SQLite has on the file.
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise file_error(error, path) from error
        self._let_go = weakref.finalize(self, os.close, self._descriptor)
        self._files: tuple[object, object] | None = None
        self._written: tuple[int, int] | None = None
        self._header = b""
        self.generations = Generations(path)
        self.rescued: Path | None = None
        """The file for the open contents, set when the files were found changed."""
        self.when_changed: Callable[[Path], None] = lambda _: None
        """Called once with the file to which the open contents are saved."""

    def note(self) -> None:
        """Accept the present files, which were just opened, as those of this process."""
        with self.writing():
            self._files = _which(self._path), _which(self._log)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Accept the file's state at the end as this process's.

        Used around each checkpoint, the only writer.
        """
        with self._checkpoint:
            try:
                yield
            finally:
                self._written, self._header = self._last_written(), self._beginning()
                self.generations.end()

    def refuse_changed(self) -> None:
        """Refuse files that were deleted, moved, replaced or written by others.

        Raises:
            WrongStore: The files have changed; earlier commits are saved to `rescued`, if they can still be
                read.
        """
        with self._checkpoint:
            if self._files is None:
                return
            found = os.fstat(self._descriptor)
            is_as_written = (found.st_mtime_ns, found.st_size) == self._written
            if is_as_written and (_which(self._path), _which(self._log)) == self._files:
                return
            reason = self._what_changed(*self._files)
        if not reason:
            return
        if self.rescued is None:
            self.rescued = self._path.with_name(f"{self._path.name}.rescued.{self._clock.now()}")
            _LOG.error("store.taken_away", reason=reason, rescued=str(self.rescued))
            self.when_changed(self.rescued)
        raise WrongStore(
            f"{reason} while the server was running; the server refuses all changes now",
            value=str(self._path),
            remedy=self._remedy(self.rescued),
        )

    @staticmethod
    def _remedy(rescued: Path) -> str:
        if rescued.exists():
            return (
                "all accepted changes are saved: stop the server and run `postroom restore --force "
                f"{rescued}`"
            )
        return (
            f"stop the server and restore {rescued} if it exists: the server saves the accepted "
            "changes there if it can still read them. Otherwise restore a backup, see `postroom "
            "backup list`"
        )

    def close(self) -> None:
        """Close the file, once no connection is open; a repeated call has no effect."""
        self._let_go()

    def _what_changed(self, database: object, log: object) -> str:
        if (found := _which(self._path)) != database:
            return f"{self._path} was {'deleted' if found is None else 'replaced'}"
        if (found := _which(self._log)) != log:
            return f"{self._log} was {'deleted' if found is None else 'replaced'}"
        if self._last_written() != self._written:
            if self._beginning() != self._header:
                return f"another program wrote to {self._path}"
            self._written = self._last_written()  # it was touched, and nothing else
        return ""

    def _beginning(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, _HEADER)

    def _last_written(self) -> tuple[int, int]:
        found = os.fstat(self._descriptor)
        return found.st_mtime_ns, found.st_size


def _which(path: Path) -> tuple[int, int] | None:
    """Return the identity of a file; None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(error, path) from error
    return found.st_dev, found.st_ino
