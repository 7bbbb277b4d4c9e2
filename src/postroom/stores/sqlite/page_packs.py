"""Packs: files of compressed pages that backups share, each written once.

Blocks of sixteen pages, then an index, then its length in eight bytes. A pack that is written again, because
no backup needs much of it any more, keeps the numbers of its pages.
"""

import json
import os
import re
import threading
import time
import zlib
from array import array
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Final, NamedTuple

from postroom.contracts.errors import StoreCorrupt
from postroom.stores.sqlite.copying import PARTIAL, sync_folder

PACKS: Final = "packs"
HASH: Final = 16
"""Bytes of the hash of a page."""
BLOCK: Final = 16
"""Pages that are compressed together: more compress better and are read in vain more often."""
_LEVEL: Final = 3
"""Of zlib: 6 saves some 4 % more of mail, and takes twice as long."""
_TAIL: Final = 8
_NAME: Final = re.compile(r"([0-9a-f]{8,})\.pack")
_SYNCED: Final = 1 << 19
"""Bytes after which what was written goes to the disk: a commit of others waits for so much, not for all."""
_REST: Final = 2
"""How many times as long as that took the disk is left to those who commit."""


def damaged(said: str, path: Path) -> StoreCorrupt:
    """Return the error for a backup, or a pack that it needs, that does not read back as it was written."""
    remedy = "restore another backup: `postroom backup list --check` says which are whole"
    return StoreCorrupt(said, value=str(path), remedy=remedy)


class Record(NamedTuple):
    """Where one page is, and what it must be."""

    digest: bytes
    pack: int
    number: int


def pack_of(folder: Path, number: int) -> Path:
    """Return where the pack of this number is."""
    return folder / f"{number:08x}.pack"


def packs_in(folder: Path) -> dict[int, Path]:
    """Return the packs of a folder by their numbers; what has another name is not ours."""
    named = ((_NAME.fullmatch(path.name), path) for path in folder.glob("*.pack"))
    return {int(name[1], 16): path for name, path in named if name}


def digest_of(page: bytes) -> bytes:
    """Return the hash by which a page is known."""
    return blake2b(page, digest_size=HASH).digest()


class NewPack:
    """A pack that is being written."""

    def __init__(self, path: Path, page_size: int) -> None:
        path.touch(mode=0o600)
        self._file = path.open("wb")
        self._page_size = page_size
        self._never = threading.Event()
        self._waiting: list[bytes] = []
        self._lengths = array("I")
        self.pages = self._skipped = self._unsynced = 0

    def __enter__(self) -> "NewPack":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()

    def add(self, page: bytes) -> int:
        """Take a page, and return its number in the pack."""
        self._waiting.append(page)
        self.pages += 1
        if len(self._waiting) == BLOCK:
            self._write_block()
        return self.pages - 1

    def skip(self) -> None:
        """Leave out a page that nobody needs: its number stays."""
        self.add(b"")
        self._skipped += 1

    def _write_block(self) -> None:
        held = any(self._waiting)
        block = b"".join(page or bytes(self._page_size) for page in self._waiting) if held else b""
        packed = zlib.compress(block, _LEVEL) if held else b""
        self._file.write(packed)
        self._unsynced += len(packed)
        if self._unsynced >= _SYNCED:
            self._sync()
        self._lengths.append(len(packed))
        self._waiting.clear()

    def _finish(self) -> None:
        if self._waiting:
            self._write_block()
        told = {"pages": self.pages, "skipped": self._skipped, "page_size": self._page_size}
        index = zlib.compress(json.dumps({**told, "lengths": self._lengths.tolist()}).encode())
        self._file.write(index + len(index).to_bytes(_TAIL, "big"))
        self._sync()

    def _sync(self) -> None:
        began = time.monotonic()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unsynced = 0
        self._never.wait((time.monotonic() - began) * _REST)


@dataclass(slots=True)
class Pack:
    """A pack that is there; one block of it is kept."""

    path: Path
    pages: int
    skipped: int
    """Pages that were left out when it was written again."""
    page_size: int
    offsets: "array[int]"
    """Where each block begins, and the last one ends."""
    held: tuple[int, bytes] = field(default=(-1, b""))
    file: IO[bytes] | None = None

    @classmethod
    def open(cls, path: Path) -> "Pack":
        """Read the index of a pack.

        Raises:
            StoreCorrupt: it is missing, or not as it was written.
        """
        try:
            with path.open("rb") as file:
                end = file.seek(-_TAIL, os.SEEK_END)
                size = int.from_bytes(file.read(_TAIL), "big")
                file.seek(end - size)
                told = json.loads(zlib.decompress(file.read(size)))
                offsets = array("Q", [0])
                for length in told["lengths"]:
                    offsets.append(offsets[-1] + length)
                found = cls(path, told["pages"], told["skipped"], told["page_size"], offsets)
        except (OSError, ValueError, OverflowError, KeyError, TypeError, zlib.error) as error:
            raise damaged(f"the pages in {path} cannot be read: {error}", path) from error
        if offsets[-1] != end - size:
            raise damaged(f"{path} is cut off", path)
        return found

    def page(self, number: int) -> bytes:
        """Return a page.

        Raises:
            StoreCorrupt: it is not there, or its block does not read.
        """
        block, at = divmod(number, BLOCK)
        if self.held[0] != block:
            self.held = block, self._block(block)
        return self.held[1][at * self.page_size : (at + 1) * self.page_size]

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self.file is not None:
            self.file.close()

    def _block(self, block: int) -> bytes:
        if block >= len(self.offsets) - 1:
            raise damaged(f"{self.path} lacks a page", self.path)
        try:
            if self.file is None:
                self.file = self.path.open("rb")
            self.file.seek(self.offsets[block])
            return zlib.decompress(self.file.read(self.offsets[block + 1] - self.offsets[block]))
        except (OSError, zlib.error) as error:
            raise damaged(f"the pages in {self.path} cannot be read: {error}", self.path) from error


class Packs:
    """The packs of a folder, opened as they are needed."""

    def __init__(self, folder: Path, unnamed: dict[int, Path] | None = None) -> None:
        self._folder, self._unnamed = folder, unnamed or {}
        self._open: dict[int, Pack] = {}

    def __enter__(self) -> "Packs":
        return self

    def __exit__(self, *_: object) -> None:
        for pack in self._open.values():
            pack.close()

    def page(self, record: Record) -> bytes:
        """Return a page that is as it was written.

        Raises:
            StoreCorrupt: it is not.
        """
        pack = self._open.get(record.pack)
        if pack is None:
            path = self._unnamed.get(record.pack) or pack_of(self._folder, record.pack)
            pack = self._open[record.pack] = Pack.open(path)
        page = pack.page(record.number)
        if digest_of(page) != record.digest:
            raise damaged(f"a page in {pack.path} was changed", pack.path)
        return page


def rewrite(path: Path, marks: bytearray) -> None:
    """Write a pack again without the pages that are not marked; their numbers stay."""
    partial = path.with_name(path.name + PARTIAL)
    with closing(Pack.open(path)) as pack:
        try:
            with NewPack(partial, pack.page_size) as new:
                for number in range(pack.pages):
                    if number < len(marks) and marks[number]:
                        new.add(pack.page(number))
                    else:
                        new.skip()
            with closing(Pack.open(partial)) as written:
                for number, mark in enumerate(marks):
                    if mark and written.page(number) != pack.page(number):
                        raise damaged(f"{path} could not be written again", path)
            partial.replace(path)
            sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)
