"""The identity and range of an archive's store: a small file next to the repositories.

A starting server compares it, so that another or older database never writes its numbers into an archive that
already has them. Every change that the archive gets adds an entry to the log of its project, and the numbers
of entries only grow: therefore the newest number shows an older database.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from postroom.contracts.errors import ConfigError, why_unreadable

NAME: Final = "store.json"
_READ_BEFORE: Final = "newest_message"
"""A field without which the previous release does not start; 0 carries no information."""
_LARGEST: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMark:
    """A store by its id, and the newest known entry in the log of each project, by slug."""

    store_id: str
    logs: Mapping[str, int] = field(default_factory=dict)
    database: str = ""
    """The location of the database; empty in an archive's mark."""


def read_mark(folder: Path) -> StoreMark | None:
    """Return the mark in a folder, or None if there is none.

    Raises:
        ConfigError: The file exists and is not a mark.
    """
    file = folder / NAME
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(_LARGEST))
        return StoreMark(
            store_id=str(found["store_id"]),
            logs={str(slug): int(newest) for slug, newest in dict(found.get("logs", {})).items()},
            database=str(found["database"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{file} does not name the store of this folder: {why_unreadable(error)}",
            value=str(file),
            remedy="restore the file from a copy, or remove it; the next start writes a new file",
        ) from error


def write_mark(folder: Path, mark: StoreMark) -> None:
    """Write the mark; a reader sees the complete old or new one.

    Raises:
        OSError: The folder cannot be created or written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f".{NAME}.{os.getpid()}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123 - its mode
            json.dump({**asdict(mark), _READ_BEFORE: 0}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / NAME)
    finally:
        draft.unlink(missing_ok=True)


def raise_mark(folder: Path, slug: str, newest: int) -> None:
    """Record in the mark that the archive has this entry of a project's log; do nothing without a mark.

    Raises:
        ConfigError: The file is not a mark.
        OSError: The mark cannot be written.
    """
    mark = read_mark(folder)
    if mark is not None and mark.logs.get(slug, 0) < newest:
        write_mark(folder, replace(mark, logs={**mark.logs, slug: newest}))


def repositories(folder: Path) -> list[str]:
    """Return the slugs of the repositories of an archive; none if the folder does not exist."""
    return sorted(path.stem for path in folder.glob("*.git"))
