"""Which store an archive is of, and how far it reaches: a small file beside the repositories.

It is compared when a server starts, so that another database, or an older one, never writes its numbers into
an archive that has them already. Every change that an archive is told of makes an entry in the log of its
project, and the numbers of entries only grow: by the newest one any older database is known.
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
"""What the release before does not start without; 0 says nothing."""
_LARGEST: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMark:
    """A store by its id, and the newest entry that was seen in the log of each project, by slug."""

    store_id: str
    logs: Mapping[str, int] = field(default_factory=dict)
    database: str = ""
    """Where it is; an archive's mark does not say."""


def read_mark(folder: Path) -> StoreMark | None:
    """Return the mark in a folder, or None when there is none.

    Raises:
        ConfigError: the file is there and no mark.
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
    """Write the mark; a reader sees the old one or the new one, whole.

    Raises:
        OSError: the folder cannot be made or written.
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
    """Have the mark say that the archive has this entry of a project's log; nothing where there is no mark.

    Raises:
        ConfigError: the file is no mark.
        OSError: it cannot be written.
    """
    mark = read_mark(folder)
    if mark is not None and mark.logs.get(slug, 0) < newest:
        write_mark(folder, replace(mark, logs={**mark.logs, slug: newest}))


def repositories(folder: Path) -> list[str]:
    """Return the slugs of the repositories of an archive; none when there is no such folder."""
    return sorted(path.stem for path in folder.glob("*.git"))
