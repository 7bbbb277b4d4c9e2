"""Backups that share pages: each keeps those that changed since the one before, and a list of all of them.

    backups/<name>.backup         a line of JSON, then hash and place of each page, then a hash of all that
    backups/packs/<number>.pack   compressed blocks of pages, then an index; written once, shared by backups

A page is compared with the page of the same number in the backup before: SQLite moves none. A place is the
number of a pack and of a page in it. Whatever is written gets its name when it is whole and on the disk,
packs before the backup that names them: a process that is killed leaves what was there before, and rubbish.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import IO, Final, NamedTuple

from postroom.contracts import progress
from postroom.contracts.errors import StateError, StoreCorrupt, StoreError
from postroom.log import get_logger
from postroom.stores.sqlite.connection import connect_unshared, file_error, translated
from postroom.stores.sqlite.copying import PARTIAL, remove_with_companions, sync_folder
from postroom.stores.sqlite.page_packs import (
    BLOCK,
    HASH,
    PACKS,
    NewPack,
    Pack,
    Packs,
    Record,
    damaged,
    digest_of,
    pack_of,
    packs_in,
    rewrite,
)

_LOG = get_logger(__name__)
SUFFIX: Final = ".backup"
FORMAT: Final = 1
_LINE: Final = Struct(f">{HASH}sII")
"""A page in the list: its hash, the number of its pack, and its own in there."""
_SEAL: Final = 32
_RECORDS: Final = 4096
"""Pages of a list that are read at once."""
_TOLD: Final = 2048
"""Pages after which it is said how far the work is."""
MOST_PACKS: Final = 32
"""Packs that a backup may need; the pages of the smallest of more are written again."""
MOST_DEAD: Final = 0.1
"""The part of a pack that no backup needs, beyond which it is written again without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a backup says of itself."""

    path: Path
    made_at: int
    page_size: int
    pages: int
    schema: int
    store_id: str
    added: int
    """Bytes that were written for it: those that no backup before it had."""

    @property
    def size(self) -> int:
        """The bytes of the database that it gives back."""
        return self.page_size * self.pages


class About(NamedTuple):
    """What is said of a database that is backed up."""

    made_at: int
    schema: int
    store_id: str


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep every other process from writing to a folder of backups for so long.

    Raises:
        StateError: another is at work there.
    """
    from filelock import FileLock, Timeout  # loaded where backups are made

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", mode=0o600, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise StateError(
            f"another process makes or removes backups in {folder}", remedy="wait until it is done"
        ) from None
    try:
        yield
    finally:
        lock.release()


def about(copy: Path, made_at: int) -> About:
    """Return what is to be said of a copy of a database.

    Raises:
        StoreError: it does not read.
    """
    with translated(), closing(connect_unshared(copy)) as connection:
        [schema] = connection.execute("SELECT max(version) FROM schema_migrations").fetchone()
        [is_told] = connection.execute(
            "SELECT count(*) FROM sqlite_schema WHERE name = 'store_identity'"
        ).fetchone()
        row = connection.execute("SELECT store_id FROM store_identity").fetchone() if is_told else None
        return About(made_at, schema, "" if row is None else row[0])


def keep(copy: Path, target: Path, *, now: int) -> Listed:
    """Keep a whole copy of a database as a backup that shares pages with those before it.

    Raises:
        StoreError: it cannot be written; nothing changed.
        StateError: another process makes or removes backups.
    """
    try:
        with folder_lock(target.parent):
            return add(copy, target, about(copy, now))
    except OSError as error:
        raise file_error(error, target) from error


def add(copy: Path, target: Path, about: About) -> Listed:
    """Keep a copy of a database as a backup that shares pages with those before, and read it back whole.

    `copy` is written by nobody. The caller holds the lock of the folder. When a page that it would share
    does not read back, it is written anew with all pages.

    Raises:
        OSError: it cannot be written; nothing changed.
    """
    folder = target.parent
    _tidy(folder)
    before = next((one for one in reversed(listed(folder)) if one.path != target), None)
    try:
        return _Writing(copy, target, about, before).written()
    except StoreCorrupt as error:
        if before is None:
            raise
        _LOG.error("backup.damaged", reason=error.message, remedy="the next backup shares nothing with it")
    return _Writing(copy, target, about, None).written()


def listed(folder: Path) -> list[Listed]:
    """Return the backups of a folder that can be read, oldest first."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(StoreError, OSError):
            found.append(read(path))
    return sorted(found, key=lambda one: (one.made_at, one.path.name))


def read(path: Path) -> Listed:
    """Return what a backup says of itself.

    Raises:
        StoreCorrupt: it is none, or cannot be read to its end.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        try:
            told = json.loads(file.readline(4096))
            if told.pop("format") != FORMAT:
                raise damaged(f"{path} has a format that this postroom does not know", path)
            found = Listed(path=path, **told)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged(f"{path} is no backup", path) from error
        left = os.fstat(file.fileno()).st_size - file.tell()
        if left != found.pages * _LINE.size + _SEAL:
            raise damaged(f"{path} is cut off", path)
        return found


def assemble(path: Path, target: IO[bytes] | None = None) -> Listed:
    """Write the database of a backup to `target`, or only read it; each page is compared with its hash.

    Raises:
        StoreCorrupt: something is not as it was written.
        OSError: it cannot be read or written.
    """
    found = read(path)
    with Packs(path.parent / PACKS) as packs:
        _read_back(found, packs, target)
    return found


def examine(path: Path, *, full: bool = False) -> None:
    """Look whether a backup can be given back: its list, and that its packs are there; or `full`, every page.

    Raises:
        StoreCorrupt: it cannot.
        OSError: it cannot be opened.
    """
    if full:
        assemble(path)
        return
    needed: set[int] = set()
    for piece in _pieces(read(path)):  # beside calls: eight times as fast as one record after the other
        needed.update(pack for _, pack, _ in _LINE.iter_unpack(piece))
    for pack in needed:
        Pack.open(pack_of(path.parent / PACKS, pack))


def sweep(folder: Path, without: Collection[Path] = ()) -> int:
    """Remove backups and free what no other of their folder needs, and return how many bytes that are.

    The caller holds the lock of the folder.

    Raises:
        StoreCorrupt: another cannot be read, so that nobody knows what it needs; nothing was removed.
        OSError: something cannot be removed.
    """
    _tidy(folder)
    needed = _needed(one for one in folder.glob(f"*{SUFFIX}") if one not in without and not one.is_dir())
    freed = 0
    for path in without:
        freed += path.stat().st_size
        remove_with_companions(path)
    return freed + _swept(folder, needed)


def _needed(backups: Iterable[Path]) -> dict[int, bytearray]:
    """Return for each pack which of its pages a backup needs."""
    needed: dict[int, bytearray] = {}
    for path in backups:
        try:
            listed = read(path)
        except OSError as error:
            raise damaged(f"{path} cannot be read, so nothing was removed: {error.strerror}", path) from error
        for record in records(listed):
            marks = needed.setdefault(record.pack, bytearray())
            if len(marks) <= record.number:
                marks.extend(bytes(record.number + 1 - len(marks)))
            marks[record.number] = 1
    return needed


def _swept(folder: Path, needed: Mapping[int, bytearray]) -> int:
    freed = 0
    for number, path in packs_in(folder / PACKS).items():
        before = path.stat().st_size
        if (marks := needed.get(number)) is None:
            path.unlink()
            freed += before
            continue
        try:
            _shrink(path, marks)
        except StoreCorrupt as error:  # what of it still reads is needed; `backup list --check` says whose
            _LOG.error("backup.damaged", reason=error.message, remedy=error.remedy)
        freed += before - path.stat().st_size
    return freed


def _shrink(path: Path, marks: bytearray) -> None:
    """Write a pack again when no backup needs much of it any more.

    Raises:
        StoreCorrupt: it does not read; it is as it was.
    """
    pack = Pack.open(path)
    held = pack.pages - pack.skipped
    if held - sum(marks) > MOST_DEAD * held:
        rewrite(path, marks)


def records(found: Listed) -> Iterator[Record]:
    """Yield the pages of a backup in order.

    Raises:
        StoreCorrupt: the list is not as it was written.
    """
    for piece in _pieces(found):
        yield from map(Record._make, _LINE.iter_unpack(piece))


def _pieces(found: Listed) -> Iterator[bytes]:
    """Yield the list some thousand pages at a time, and at its end compare it with its seal."""
    seal = blake2b(digest_size=_SEAL)
    with found.path.open("rb") as file:
        seal.update(file.readline())
        left = found.pages
        while left:
            pages = min(left, _RECORDS)
            piece = file.read(pages * _LINE.size)
            if len(piece) < pages * _LINE.size:  # since `read` measured it
                raise damaged(f"{found.path} is cut off", found.path)
            seal.update(piece)
            left -= pages
            yield piece
        if file.read() != seal.digest():
            raise damaged(f"the list of pages in {found.path} was changed", found.path)


class _Writing:
    """One backup that is being made."""

    def __init__(self, copy: Path, target: Path, about: About, before: Listed | None) -> None:
        self._copy, self._target, self._about = copy, target, about
        with copy.open("rb") as file:
            stored = int.from_bytes(file.read(18)[16:18], "big")  # bytes 16 and 17 of the file, 1 for 65536
        self._page_size = 65536 if stored == 1 else stored
        self._before = before if before and before.page_size == self._page_size else None
        self._folder = target.parent / PACKS
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def written(self) -> Listed:
        """Write pack and list, read all of it back, and give them their names."""
        again = self._not_shared()
        number = 1 + max(packs_in(self._folder), default=0)
        pack = pack_of(self._folder, number)
        partial, unlisted = (one.with_name(one.name + PARTIAL) for one in (pack, self._target))
        try:
            entries = bytearray()
            with NewPack(partial, self._page_size) as new:
                pages = self._copy.stat().st_size // self._page_size
                for done, (digest, page, old) in enumerate(self._pages()):
                    if not done % _TOLD:
                        progress.tell("keeping what changed: pages", done, pages)
                    if old is not None and old.digest == digest and old.pack not in again:
                        entries += _LINE.pack(*old)
                    else:
                        entries += _LINE.pack(digest, number, new.add(page))
            self._list(unlisted, entries, partial.stat().st_size if new.pages else 0)
            with Packs(self._folder, {number: partial}) as packs:
                _read_back(read(unlisted), packs, None)
            if new.pages:
                partial.replace(pack)
                sync_folder(self._folder)
            unlisted.replace(self._target)
            sync_folder(self._target.parent)
        finally:
            partial.unlink(missing_ok=True)
            unlisted.unlink(missing_ok=True)
        return read(self._target)

    def _not_shared(self) -> set[int]:
        """Return the packs whose pages are written again: the smallest, where there are too many."""
        if self._before is None:
            return set()
        used = Counter(one.pack for one in records(self._before))
        return {pack for pack, _ in used.most_common()[MOST_PACKS - 1 :]}

    def _pages(self) -> Iterator[tuple[bytes, bytes, Record | None]]:
        former = iter(()) if self._before is None else records(self._before)
        with self._copy.open("rb") as file:
            while piece := file.read(self._page_size * BLOCK * 16):
                for at in range(0, len(piece), self._page_size):
                    page = piece[at : at + self._page_size]
                    yield digest_of(page), page, next(former, None)

    def _list(self, path: Path, entries: bytearray, added: int) -> None:
        told = {
            "format": FORMAT,
            **self._about._asdict(),
            "page_size": self._page_size,
            "pages": len(entries) // _LINE.size,
            "added": added + len(entries),
        }
        head = json.dumps(told).encode() + b"\n"
        path.touch(mode=0o600)
        with path.open("wb") as file:
            for part in (head, entries, blake2b(head + entries, digest_size=_SEAL).digest()):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())


def _read_back(found: Listed, packs: Packs, target: IO[bytes] | None) -> None:
    for done, record in enumerate(records(found)):
        if not done % _TOLD:
            progress.tell("reading the backup: pages", done, found.pages)
        page = packs.page(record)
        if target is not None:
            target.write(page)


def _tidy(folder: Path) -> None:
    """Remove what a process that was killed left half written."""
    for left in (*folder.glob(f"*{SUFFIX}{PARTIAL}"), *(folder / PACKS).glob(f"*{PARTIAL}")):
        left.unlink(missing_ok=True)
