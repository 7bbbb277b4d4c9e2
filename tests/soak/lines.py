"""How callers reach a server: by HTTP, and by MCP as the official SDK speaks it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Protocol

import mcp
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

PATIENCE = 60.0


class Door(Protocol):
    """The address of a server, or of several, for callers."""

    address: tuple[str, int]
    token: str
    starts: int
    """The number of its starts: a connection to an earlier start is useless."""


class Cut(Exception):
    """The connection ended before the answer was whole: the effect of the call is unknown."""


class Line:
    """One connection, kept alive, and made again when the server was."""

    def __init__(self, server: Door, patience: float = PATIENCE) -> None:
        self._server, self._patience = server, patience
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._made_at = 0
        self._one_at_a_time = asyncio.Lock()

    async def exchange(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a request after earlier ones; return status and document.

        Raises:
            Cut: it broke off.
        """
        async with self._one_at_a_time:
            return await self._exchange(method, path, body, headers)

    async def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None
    ) -> tuple[int, Any]:
        if self._made_at != self._server.starts:
            self.close()
        try:
            async with asyncio.timeout(self._patience):
                if self._stream is None:
                    self._stream = await asyncio.open_connection(*self._server.address)
                    self._made_at = self._server.starts
                return await self._exchanged(*self._stream, method, path, body, dict(headers or {}))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self.close()
            raise Cut(repr(error)) from error

    async def _exchanged(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
    ) -> tuple[int, Any]:
        told = {
            "Host": "{}:{}".format(*self._server.address),
            "Authorization": f"Bearer {self._server.token}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }
        head = "".join(f"{name}: {text}\r\n" for name, text in told.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        status, *rows = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        found = {row.partition(":")[0].lower(): row.partition(":")[2].strip() for row in rows if row}
        content = await reader.readexactly(int(found.get("content-length", "0")))
        if found.get("connection", "").lower() == "close":
            self.close()
        return int(status.split(" ")[1]), json.loads(content) if content else None

    async def tool(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool.

        Raises:
            Cut: it broke off.
            RuntimeError: it was refused.
        """
        params = {"name": name, "arguments": arguments}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        status, document = await self.exchange("POST", "/mcp", json.dumps(call).encode())
        if status == 503:
            raise Cut(str(document))
        if status != 200:
            raise RuntimeError(f"{name}: {status} {str(document)[:500]}")
        return _answer(name, document["result"])

    def close(self) -> None:
        """End the connection."""
        if self._stream is not None:
            self._stream[1].close()
            self._stream = None


class McpLine:
    """An MCP client of the official SDK, which is made again when its connection broke; it makes one call at a time."""

    def __init__(self, server: Door) -> None:
        self._server = server
        self._calls = asyncio.Queue[tuple[str, Mapping[str, Any], asyncio.Future[Any]]]()
        self._serving: asyncio.Task[None] | None = None

    async def tool(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool.

        Raises:
            Cut: it broke off.
            RuntimeError: it was refused.
        """
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait((name, arguments, answer))
        return await answer

    async def _serve(self) -> None:
        """Make the calls, in the one task in which the client's connection may be opened and closed."""
        call = await self._calls.get()
        headers = {"Authorization": f"Bearer {self._server.token}"}
        async with create_mcp_http_client(headers=headers) as http:
            while True:
                try:
                    url = "http://{}:{}/mcp".format(*self._server.address)
                    async with mcp.Client(streamable_http_client(url, http_client=http)) as client:
                        while True:
                            name, arguments, answer = call
                            result = await client.call_tool(name, dict(arguments), PATIENCE)
                            self._settle(answer, name, result.model_dump(by_alias=True))
                            call = await self._calls.get()
                except (
                    Exception,
                    BaseExceptionGroup,
                ) as error:  # whatever the SDK makes of a broken connection
                    if not call[2].done():
                        call[2].set_exception(Cut(repr(error)))
                call = await self._calls.get()

    def _settle(self, answer: asyncio.Future[Any], name: str, result: Mapping[str, Any]) -> None:
        try:
            answer.set_result(_answer(name, result))
        except (Cut, RuntimeError) as error:
            answer.set_exception(error)

    async def close(self) -> None:
        """End the client."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
            self._serving = None


def _answer(name: str, result: Mapping[str, Any]) -> Any:
    """Return what a tool answered.

    Raises:
        Cut: it can be called again.
        RuntimeError: it was refused.
    """
    found = result["structuredContent"]
    if result.get("isError"):
        raise (Cut if found["error"].get("retryable") else RuntimeError)(f"{name}: {str(found)[:500]}")
    return found["result"] if set(found) == {"result"} else found
