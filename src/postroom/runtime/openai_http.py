"""The HTTP side of the model adapter; the only module that knows the client library."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from postroom.contracts.errors import (
    ConfigError,
    InferenceTimeout,
    MissingExtra,
    PostroomError,
    ProviderFailed,
    RequestRefused,
    StreamInterrupted,
)
from postroom.runtime.openai_errors import failure_of

try:
    import httpx2
except ImportError as error:
    raise MissingExtra(
        f"the OpenAI-compatible model needs {error.name}, which is not installed",
        value=error.name,
        remedy='pip install "postroom[openai]"',
    ) from error

LARGEST_EVENT = 8 * 1024 * 1024
LARGEST_REFUSAL = 64 * 1024
CONNECT_SECONDS = 10.0


class Endpoint:
    """One endpoint and the connections to it; the key is sent, and shown nowhere."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        silence_ms: int,
        proxy: str | None = None,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._url = _address(base_url)
        self._key = api_key or ""
        self._client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx2.Timeout(silence_ms / 1000, connect=CONNECT_SECONDS),
            proxy=proxy,
            verify=verify,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"Endpoint({str(self._url)!r})"

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def events(self, body: dict[str, Any], *, now: int) -> AsyncIterator[AsyncIterator[str]]:
        """Send a request and yield the data of the answer's events, as they come.

        Raises:
            InferenceError: the endpoint refused, could not be reached, or broke off.
        """
        begun = False
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    raise failure_of(
                        response.status_code, response.headers, await self._refusal(response), now=now
                    )
                if response.headers.get("content-type", "").startswith("application/json"):
                    raise RequestRefused("the model's endpoint does not stream its answers")
                begun = True
                async with aclosing(_data(response.aiter_bytes())) as data:
                    yield data
        except httpx2.TimeoutException as error:
            raise InferenceTimeout("the model's endpoint was silent for too long") from error
        except httpx2.RequestError as error:
            if begun:
                raise StreamInterrupted("the connection broke before the answer was whole") from error
            raise ProviderFailed(f"the model's endpoint cannot be reached: {self._hidden(error)}") from error
        except PostroomError as error:
            if self._key and self._key in error.message:
                error.message = self._hidden(error.message)
                error.args = (error.message,)
            raise

    async def _refusal(self, response: httpx2.Response) -> bytes:
        text = b""
        async for piece in response.aiter_bytes():
            text += piece
            if len(text) > LARGEST_REFUSAL:
                break
        return text[:LARGEST_REFUSAL]

    def _hidden(self, text: object) -> str:
        return str(text).replace(self._key, "***") if self._key else str(text)


def _address(base_url: str) -> httpx2.URL:
    try:
        url = httpx2.URL(f"{base_url.rstrip('/')}/chat/completions")
    except httpx2.InvalidURL as error:
        raise ConfigError(f"{base_url!r} is no address of an endpoint", value=base_url) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{base_url!r} is no address of an endpoint", value=base_url)
    return url


async def _data(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """Yield the data of server-sent events; lines end with a line feed, not with what Unicode calls one."""
    rest = b""
    data: list[bytes] = []
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) + sum(len(line) for line in data) > LARGEST_EVENT:
            raise ProviderFailed("the model's endpoint sent an event that is too large")
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                data.append(text[5:].removeprefix(b" "))
            elif not text and data:
                yield b"\n".join(data).decode(errors="replace")
                data = []
    last = rest.removesuffix(b"\r")
    if last.startswith(b"data:"):
        data.append(last[5:].removeprefix(b" "))
    if data:
        yield b"\n".join(data).decode(errors="replace")
