"""Files as adapters give and take them, whole."""

from collections.abc import AsyncIterator
from hashlib import sha256

from postroom.contracts.files import FileContent
from postroom.gateway.events import Attachment
from postroom.gateway.platforms.base import BasePlatformAdapter


async def fetched(adapter: BasePlatformAdapter, attachment: Attachment, *, max_bytes: int) -> bytes:
    """Return a file that came in, as its pieces put together."""
    return b"".join([piece async for piece in adapter.fetch_media(attachment, max_bytes=max_bytes)])


def sending(data: bytes) -> FileContent:
    """Return bytes as a file to send, in pieces of a few bytes."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 3):
            yield data[start : start + 3]

    return FileContent(size=len(data), sha256=sha256(data).hexdigest(), pieces=pieces)
