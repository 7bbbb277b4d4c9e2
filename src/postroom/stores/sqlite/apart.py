"""Reads databases that a server has open, in a separate process with a lower priority.

Reading a large database keeps a processor busy for a while. A thread of the server would compete with all
calls for Python's global interpreter lock, whereas a separate process uses only spare processor time. The
separate process is `apart_process`. The process reads from a pipe of the server, and therefore ends together
with the server.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from postroom.contracts import errors, progress
from postroom.contracts.errors import PostroomError, StoreClosed, StoreUnavailable

_PROGRAM: Final = "postroom.stores.sqlite.apart_process"


class Apart:
    """Reads a database in separate processes with a low priority."""

    def __init__(self, refuse_changed: Callable[[], None] = lambda: None) -> None:
        """Create the object; `refuse_changed` raises an error if the database files were replaced."""
        self._refuse_changed = refuse_changed
        self._running: set[asyncio.subprocess.Process] = set()
        self._is_closed = False

    async def faults(self, database: Path) -> list[str]:
        """Read a whole database while other processes write to it, and return the list of its problems.

        Raises:
            StoreError: The database cannot be read, or this object is closed.
        """
        results: list[str] = await self._run_to_end("faults", database)
        return results

    async def read_back(self, copy: Path) -> str:
        """Read every table and index of a copy, and return the SHA-256 of the file.

        No process may write to the copy.

        Raises:
            StoreCorrupt: The copy is damaged.
            StoreError: The copy cannot be read.
        """
        digest: str = await self._run_to_end("read_back", copy)
        return digest

    def close(self) -> None:
        """Reject new work and stop active work; a second call has no effect.

        The method is thread-safe.
        """
        self._is_closed = True
        for process in tuple(self._running):
            with suppress(ProcessLookupError):
                process.kill()

    async def _run_to_end(self, work: str, database: Path) -> Any:
        self._check_open()
        await asyncio.to_thread(self._refuse_changed)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _PROGRAM,
                work,
                str(database),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise StoreUnavailable(
                f"cannot start a process: {error.strerror}",
                value=sys.executable,
                remedy="see the open files in `postroom doctor`; after an upgrade, start the server again",
            ) from error
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
        self._running.add(process)
        try:
            if self._is_closed:
                self.close()
            data = b""
            async for line in process.stdout:
                data = line
                if line.startswith(b"["):  # it tells the progress
                    doing, done, total = json.loads(line)
                    progress.tell(doing, done, total)
                    data = b""
        finally:
            process.stdin.close()
            code = await process.wait()
            self._running.discard(process)
        if data and not code:
            document = json.loads(data)
            if "done" in document:
                return document["done"]
            kind: type[PostroomError] = getattr(errors, document["kind"])
            raise kind(document["message"], value=document["value"], remedy=document["remedy"])
        self._check_open()
        raise StoreUnavailable(f"the process that works on {database} ended with exit code {code}; try again")

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("the database is closed")
