"""Detects damage in the log of a killed process, before SQLite reads the log and silently drops commits.

SQLite reads a log up to the first frame with a wrong checksum, and drops the rest. Dropping the rest rolls
back a transaction that a power failure interrupted. However, one flipped bit in the middle of the log would
silently undo all later commits. An interrupted transaction is always the last one in its log, because the
next transaction is written only after the previous one is on the disk. Therefore the check continues after a
wrong frame with the frame's own checksum: a valid frame directly after the end of a transaction proves that
this transaction was completely on the disk. Valid sequences elsewhere prove nothing. Other valid sequences
may be the rest of an older, interrupted transaction whose beginning a shorter transaction has overwritten.

Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

import os
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from postroom.contracts.errors import WrongStore
from postroom.stores.sqlite.connection import file_error
from postroom.stores.sqlite.lock import OwnerLock

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_HEADER_AT: Final = 0
_WORD: Final = 4
_ALL_BITS: Final = 0xFFFFFFFF
_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The byte order of checksums, keyed by the magic number of the log."""
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"
_PAGE_SIZE_AT: Final = 16
_LARGEST_PAGE: Final = 65536

_Checksum = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class _Frame:
    """A frame of the log, which contains one page of the database."""

    ends_transaction: bool
    salts: tuple[int, int]
    """The salts of the log; other salts if the frame is from before the log restarted."""
    stored: _Checksum
    order: str
    data: bytes

    def checksum(self, prior: _Checksum) -> _Checksum:
        """Return the checksum of this frame, given the checksum of the frame before it."""
        return _checksum(self.data, prior, self.order)


def refuse_damaged_log(database: Path) -> None:
    """Check that the log of a database has no damage before its last commit.

    No process may have the database open.

    Raises:
        WrongStore: The log is damaged, and commits follow the damage.
        StoreError: The log cannot be read.
    """
    log = _log_path(database)
    if (at := _damaged_at(log, database)) is not None:
        raise WrongStore(f"{log} is damaged at byte {at}: later commits would be lost", value=str(log))


def cut_damaged_log(database: Path, *, now: int) -> Path | None:
    """Copy a database and its damaged log, truncate the log at the damage, and return the path of the copy.

    Return None without changes if the log is not damaged.

    Raises:
        StoreHeld: Another process uses the database.
        StoreError: There is no space for the copy, or a file cannot be read or written.
    """
    log = _log_path(database)
    if not (database.exists() and log.exists()):
        return None
    lock = OwnerLock(database)
    lock.acquire(now=now, purpose="server")
    try:
        if (at := _damaged_at(log, database)) is None:
            return None
        kept_path = database.with_name(f"{database.name}.damaged.{now}")
        for file in (database, log):
            shutil.copy2(file, kept_path.with_name(file.name.replace(database.name, kept_path.name)))
        os.truncate(log, at)
    except OSError as error:
        raise file_error(error, log) from error
    finally:
        lock.release()
    return kept_path


def _log_path(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _damaged_at(log: Path, database: Path) -> int | None:
    """Return the position of the damage, or None if the log is missing, intact or cut at its end."""
    try:
        with log.open("rb") as file:
            return _damage(file, database)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(error, log) from error


def _damage(file: BinaryIO, database: Path) -> int | None:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, _, page_size, _, *salts, item, two = _HEADER.unpack(header)
    order, prior = _ORDERS.get(magic, ""), (item, two)
    if not order or _checksum(header[: -2 * _WORD], (0, 0), order) != prior:
        with database.open("rb") as opened:
            opened.seek(_PAGE_SIZE_AT)
            number = int.from_bytes(opened.read(2), "big")
        frames = _frames(file, _LARGEST_PAGE if number == 1 else number, _NATIVE)
        first = next(frames, None)
        # whether the frames after the damaged header belong together
        is_damaged = first is not None and _goes_on(frames, first.salts, {first.stored}, is_behind_end=True)
        return _HEADER_AT if is_damaged else None
    at, frames = _HEADER.size, _frames(file, page_size, order)
    for frame in frames:
        computed = frame.checksum(prior)
        if (frame.salts, frame.stored) != (tuple(salts), computed):
            priors = {frame.stored, computed}
            is_damaged = _goes_on(frames, tuple(salts), priors, is_behind_end=frame.ends_transaction)
            return at if is_damaged else None
        prior = computed
        at += _FRAME.size + page_size
    return None


def _goes_on(
    frames: Iterator[_Frame], salts: tuple[int, ...], priors: set[_Checksum], *, is_behind_end: bool
) -> bool:
    """Return whether another transaction follows the frames before `frames`."""
    # `priors` contains the possible checksums before the next frame, and `is_behind_end` states whether a
    # transaction ended there. Frames with other salts are from before the log restarted.
    for frame in frames:
        if frame.salts == salts:
            fitting = {frame.checksum(prior) for prior in priors}
            if is_behind_end and frame.stored in fitting:
                return True
            priors = {frame.stored} if frame.stored in fitting else {frame.stored, *fitting}
        else:
            priors = {frame.stored}
        is_behind_end = frame.ends_transaction
    return False


def _frames(file: BinaryIO, page_size: int, order: str) -> Iterator[_Frame]:
    size = _FRAME.size + page_size
    while len(read := file.read(size)) == size:
        _, pages, *salts, item, two = _FRAME.unpack_from(read)
        yield _Frame(
            ends_transaction=pages != 0,
            salts=(salts[0], salts[1]),
            stored=(item, two),
            order=order,
            data=read[: 2 * _WORD] + read[_FRAME.size :],
        )


def _checksum(data: bytes, prior: _Checksum, order: str) -> _Checksum:
    item, two = prior
    words = iter(struct.unpack(f"{order}{len(data) // _WORD}I", data))
    for first, second in zip(words, words, strict=True):
        item = (item + first + two) & _ALL_BITS
        two = (two + second + item) & _ALL_BITS
    return item, two
