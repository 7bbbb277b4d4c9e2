"""Whether the log that a killed process left is damaged where it matters, before SQLite reads it.

SQLite reads a log up to the first frame whose checksum does not fit, and forgets the rest: so it undoes the
transaction that a power cut tore. One flipped bit in the middle would undo all that was committed behind it,
and nobody would be told. A torn transaction is the last of its log: the next one is written when it is on the
disk. So behind a frame that does not fit the checksum goes on from what the frame itself says, and a frame
that fits directly behind the end of a transaction shows that this one had been on the disk whole. Frames
that fit one another elsewhere show nothing: they may be the rest of an older transaction that a kill or a
power cut ended, and over whose beginning a shorter one was written.

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
"""The order of bytes in which checksums are made, by the first number of a log."""
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"
_PAGE_SIZE_AT: Final = 16
_LARGEST_PAGE: Final = 65536

_Checksum = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class _Frame:
    """A page as a transaction wrote it."""

    ends_transaction: bool
    salts: tuple[int, int]
    """Those of the log, where the frame is not left from before the log began anew."""
    stored: _Checksum
    order: str
    data: bytes

    def checksum(self, prior: _Checksum) -> _Checksum:
        """Return the checksum that it has behind a frame with this one."""
        return _checksum(self.data, prior, self.order)


def refuse_damaged_log(database: Path) -> None:
    """Refuse a database whose log lacks what was committed; nothing is changed. Nobody may have it open.

    Raises:
        WrongStore: the log is damaged, and others were committed behind that place.
        StoreError: the log cannot be read.
    """
    log = _log_of(database)
    if (at := _damaged_at(log, database)) is not None:
        raise WrongStore(f"{log} is damaged at byte {at}: later commits would be lost", value=str(log))


def cut_damaged_log(database: Path, *, now: int) -> Path | None:
    """Keep a database and its damaged log under another name, and cut the log where it is damaged.

    Return that name; None, and nothing was done, where the log is not damaged.

    Raises:
        StoreHeld: another process has the database.
        StoreError: there is no room for the copy, or a file cannot be read or written.
    """
    log = _log_of(database)
    if not (database.exists() and log.exists()):
        return None
    lock = OwnerLock(database)
    lock.acquire(now=now, purpose="server")
    try:
        if (at := _damaged_at(log, database)) is None:
            return None
        kept = database.with_name(f"{database.name}.damaged.{now}")
        for file in (database, log):
            shutil.copy2(file, kept.with_name(file.name.replace(database.name, kept.name)))
        os.truncate(log, at)
    except OSError as error:
        raise file_error(error, log) from error
    finally:
        lock.release()
    return kept


def _log_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _damaged_at(log: Path, database: Path) -> int | None:
    """Return where a log is damaged; None where it is whole, or torn at its end, or not there."""
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
    magic, _, page_size, _, *salts, one, two = _HEADER.unpack(header)
    order, prior = _ORDERS.get(magic, ""), (one, two)
    if not order or _checksum(header[: -2 * _WORD], (0, 0), order) != prior:
        return _HEADER_AT if _holds_frames(_frames(file, _page_size_of(database), _NATIVE)) else None
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


def _holds_frames(frames: Iterator[_Frame]) -> bool:
    """Say whether frames behind a header that does not fit belong together: the header is damaged then."""
    first = next(frames, None)
    return first is not None and _goes_on(frames, first.salts, {first.stored}, is_behind_end=True)


def _goes_on(
    frames: Iterator[_Frame], salts: tuple[int, ...], priors: set[_Checksum], *, is_behind_end: bool
) -> bool:
    """Say whether a transaction was begun behind the end of one, which was on the disk whole by then.

    `priors` are the checksums from which the log may go on, and `is_behind_end` says whether that is the end
    of a transaction. Frames with other salts are left from before the log began anew.
    """
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
    """Read the frames behind the header, up to the last whole one."""
    size = _FRAME.size + page_size
    while len(read := file.read(size)) == size:
        _, pages, *salts, one, two = _FRAME.unpack_from(read)
        yield _Frame(
            ends_transaction=pages != 0,
            salts=(salts[0], salts[1]),
            stored=(one, two),
            order=order,
            data=read[: 2 * _WORD] + read[_FRAME.size :],
        )


def _page_size_of(database: Path) -> int:
    with database.open("rb") as file:
        file.seek(_PAGE_SIZE_AT)
        found = int.from_bytes(file.read(2), "big")
    return _LARGEST_PAGE if found == 1 else found


def _checksum(data: bytes, prior: _Checksum, order: str) -> _Checksum:
    one, two = prior
    words = iter(struct.unpack(f"{order}{len(data) // _WORD}I", data))
    for first, second in zip(words, words, strict=True):
        one = (one + first + two) & _ALL_BITS
        two = (two + second + one) & _ALL_BITS
    return one, two
