"""A proxy between clients and a server that breaks connections at a chosen moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes bytes between clients and a server, and breaks the connections that the test names."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self.cut_before: bytes | None = None
        """Cut the connection on which a client says this, before the server hears it."""
        self.cut_after: bytes | None = None
        """Cut it when the server has heard it and before the client gets the answer."""
        self.swallow = False
        """Take what the server says and pass nothing on."""
        self.is_cut_off = False
        """Pass nothing on, and break nothing: as a cable that was pulled out."""
        self.refuse = False
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        try:
            there, onward = await self.open()
        except OSError:  # the server is down
            writer.transport.abort()
            return
        pair = writer, onward
        self._pairs.add(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, onward, pair, asked=True))
                group.create_task(self._pass_on(there, writer, pair, asked=False))
        finally:
            self._pairs.discard(pair)
            for side in pair:
                side.transport.abort()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to the server.

        Raises:
            OSError: it is down.
        """
        return await asyncio.open_connection(*self._to)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        asked: bool,
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if asked and self.cut_before and self.cut_before in data:
                    self.cut_before = None
                    return self._cut(pair)
                if self.is_cut_off or (not asked and self.swallow):
                    continue
                writer.write(data)
                await writer.drain()
                if asked and self.cut_after and self.cut_after in data:
                    self.cut_after = None
                    return self._cut(pair)  # the server goes on with what it has heard
        except ConnectionError:
            pass
        return self._cut(pair, count=False)

    def _cut(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter], *, count: bool = True) -> None:
        self.cuts += count
        pair[0].transport.abort()
        pair[1].close()

    def cut_all(self) -> None:
        for pair in tuple(self._pairs):
            self._cut(pair)


@asynccontextmanager
async def a_proxy(dsn: str, host: str = "127.0.0.1") -> AsyncIterator[tuple[CuttingProxy, str]]:
    """Stand before a database, at an address of this machine."""
    parts = urlsplit(dsn)
    proxy = CuttingProxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    server = await asyncio.start_server(proxy.serve, host, 0)
    port = server.sockets[0].getsockname()[1]
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    yield proxy, parts._replace(netloc=f"{user}{host}:{port}").geturl()
    server.close()
    proxy.cut_all()
    await server.wait_closed()
