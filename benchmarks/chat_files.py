"""How much memory a file of a chat takes on its way in and out; the aim is 5 MB for a file of 20.

In: pieces of a channel, spooled, hashed, stored. Out: pieces of the store, as Telegram's adapter uploads them
to a server that throws them away. Told are the peak of Python's own memory, and the growth of the process.
"""

import asyncio
import os
import tempfile
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.figures import Table, size
from fake_channel import FakeChannel
from postroom.contracts.activation import RunActivation
from postroom.contracts.files import ChatFile
from postroom.contracts.messages import ContentBlock, Message, Role
from postroom.gateway.config import GatewayConfig, PlatformConfig
from postroom.gateway.events import Attachment
from postroom.gateway.files import ChatFiles, read_content
from postroom.gateway.platforms.telegram_api import TelegramApi
from postroom.stores.sqlite import SqliteStore

SIZE = size(20, 2) * 1_048_576
AIM = "under 5 MB"


class Channel(FakeChannel):
    """Gives a file of so many bytes, piece by piece."""

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield chance."""
        for _ in range(max_bytes // 65_536):
            yield os.urandom(65_536)


def anonymous() -> int:
    """Return the memory of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


async def taken_in(store: SqliteStore, most: int) -> ChatFile:
    """Fetch a file and keep it."""
    channel = Channel(PlatformConfig(enabled=True))
    await channel.connect()
    files = ChatFiles(GatewayConfig(max_media_bytes=most), store.chat.files, [channel])
    block = ContentBlock(type="document", data={"ref": "x", "name": "large.bin"})
    message = Message(role=Role.USER, content=(ContentBlock(), block), id=f"m{most}")
    [file] = await files.of_run(RunActivation.new("chat/telegram/bot/1", [message])).of(message)
    return file


async def sent_out(store: SqliteStore, file: ChatFile) -> int:
    """Upload a stored file, and return how many bytes came."""
    came = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        while came < length:
            came += len(await reader.read(65_536))
        answer = b'{"ok":true,"result":{"message_id":1}}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = await asyncio.to_thread(TelegramApi, f"http://127.0.0.1:{port}", "1:a", silence_ms=30_000)
    content = read_content(file, store.chat.files)
    answer = await api.call(
        "sendDocument", {"file": "document"}, file=(file.name, content, "application/octet-stream")
    )
    await api.close()
    server.close()
    assert answer.kind is None, answer.error
    return came


async def measured(store: SqliteStore) -> None:
    """Measure both ways."""
    table = Table("Memory for a file of a chat")
    await sent_out(store, await taken_in(store, SIZE - 65_536))  # what stays, counts for no file
    tracemalloc.start()
    file = None
    for way in ("in", "out"):
        before = anonymous()
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0]
        if file is None:
            file = await taken_in(store, SIZE)
        else:
            assert await sent_out(store, file) > SIZE
        peak = tracemalloc.get_traced_memory()[1] - held
        grown = anonymous() - before
        told = f"peak {peak / 1e6:.1f} MB of Python, {grown / 1e6:.1f} MB of the process"
        table.add(f"{way}: {file.size / 1e6:.0f} MB", told, "the file", peak / file.size, AIM)
    tracemalloc.stop()


async def main() -> None:
    """Run it on a new database."""
    with tempfile.TemporaryDirectory() as folder:
        store = await asyncio.to_thread(SqliteStore.open, Path(folder) / "postroom.db")
        try:
            await measured(store)
        finally:
            await asyncio.to_thread(store.close)
