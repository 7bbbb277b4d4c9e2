"""How far we have read, and where we said that we cannot read: kept over restarts, in one small file."""

import asyncio
import json
import os
import tempfile
from pathlib import Path

import structlog

from postroom.contracts.errors import ConfigError

_LOG = structlog.get_logger(__name__)


class Place:
    """A place in the stream. It belongs to one user: another's is none for us."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._user_id = ""
        self.since: str | None = None
        self.at = 0
        """When we were there."""
        self.told: set[str] = set()
        """Encrypted rooms that know that we cannot read them."""

    async def load(self, user_id: str) -> None:
        """Take what the file says, unless this process knows better.

        Raises:
            ConfigError: the file is there and cannot be read, or its folder cannot be written.
        """
        if self._user_id == user_id and self.since is not None:
            return
        self._user_id = user_id
        if self._path is None:
            return
        try:
            kept = await asyncio.to_thread(_read, self._path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "Matrix: the file with our place in the stream cannot be used",
                value=str(self._path),
                remedy="mend it and its folder, or take it away to begin with what is said from now on",
            ) from error
        if kept is not None and kept[0] == user_id:
            _, self.since, self.at, self.told = kept

    async def move(self, since: str, at: int) -> None:
        """Go on to a place. A file that cannot be written stays behind, and what follows comes twice."""
        moved = since != self.since
        self.since, self.at = since, at
        if self._path is None or not moved:
            return
        kept = {"user_id": self._user_id, "since": since, "at": at, "told": sorted(self.told)}
        try:
            await asyncio.to_thread(_write, self._path, json.dumps(kept))
        except OSError as error:
            _LOG.warning("matrix.place_not_kept", reason=type(error).__name__)


def _read(path: Path) -> tuple[str, str, int, set[str]] | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path.parent} cannot be written")
    if not path.exists():
        return None
    kept = json.loads(path.read_text(encoding="utf-8"))
    user_id, since, at = kept["user_id"], kept["since"], kept["at"]
    if not isinstance(user_id, str) or not isinstance(since, str) or not isinstance(at, int):
        raise TypeError("no place")
    return user_id, since, at, set(map(str, kept["told"]))


def _write(path: Path, text: str) -> None:
    """Write the whole file or leave the old one; only we may read it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
