"""Stores received bytes in private temporary files until their type is known."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from postroom.contracts.errors import TooLarge
from postroom.contracts.files import SNIFFED_BYTES, SpooledFile

MAX_FILES = 20
"""Maximum number of files of one message."""
_BATCH = 256 * 1024


@asynccontextmanager
async def spooled(pieces: AsyncIterator[bytes], *, most: int) -> AsyncIterator[SpooledFile]:
    """Write bytes to a private temporary file, which is removed at the end of the `with` block.

    Raises:
        TooLarge: There were more than `most` bytes.
    """
    handle, name = await asyncio.to_thread(tempfile.mkstemp, prefix="postroom-file-")
    path, hashed, size = Path(name), sha256(), 0
    held = bytearray()
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            async for piece in pieces:
                size += len(piece)
                if size > most:
                    raise too_large(size, most)
                held += piece
                if len(held) >= _BATCH:
                    await asyncio.to_thread(_write, file.write, hashed.update, held)
                    held = bytearray()
            await asyncio.to_thread(_write, file.write, hashed.update, held)
        yield SpooledFile(path=path, sha256=hashed.hexdigest(), size=size)
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
        await asyncio.to_thread(path.unlink, missing_ok=True)


def _write(
    write: Callable[[bytearray], object], note: Callable[[bytearray], object], held: bytearray
) -> None:
    note(held)
    write(held)


async def read_pieces(path: Path) -> AsyncIterator[bytes]:
    """Yield the bytes of a file in pieces.

    Raises:
        OSError: The path is a symbolic link, or cannot be opened.
    """
    handle = await asyncio.to_thread(open_plain, path)
    with os.fdopen(handle, "rb") as file:
        while piece := await asyncio.to_thread(file.read, _BATCH):
            yield piece


def open_plain(path: Path) -> int:
    """Open a file for reading, and return the file descriptor.

    Raises:
        OSError: The path is a symbolic link, or cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)


async def yield_content(content: bytes) -> AsyncIterator[bytes]:
    """Yield bytes that are already in memory."""
    yield content


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file, which identify its type."""
    with path.open("rb") as file:
        return file.read(SNIFFED_BYTES)


def too_large(size: int, most: int) -> TooLarge:
    """Return the error for a file that is too large."""
    why = (
        f"the file has {size:,} bytes; the limit is {most:,}"
        if most
        else "files of this type are not accepted"
    )
    return TooLarge(why, value=size)
