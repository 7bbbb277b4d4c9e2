"""The HTTP side of runs that another server executes: signed, bounded, without redirects."""

import asyncio
from typing import TYPE_CHECKING, Final

from postroom.contracts.clock import Clock
from postroom.contracts.errors import MissingExtra, RemoteMisbehaved, RemoteRefused, RemoteUnavailable
from postroom.contracts.retrying import retry_after_ms
from postroom.contracts.signing import signed
from postroom.executors.remote.wire import LARGEST_BODY
from postroom.extras import install_command

if TYPE_CHECKING:
    import httpx2

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 60.0
"""How long the other server may be silent: longer runs are answered by 202 and a callback."""
_PASSING: Final = frozenset({408, 425, 429})


class RemoteClient:
    """Posts to other servers; the connections are kept until it is closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._client: httpx2.AsyncClient | None = None

    async def post(self, url: str, body: bytes, *, secret: str, key: str | None = None) -> bytes | None:
        """Return the other server's answer with 200; None if it has accepted the run with 202.

        Raises:
            MissingExtra: The HTTP client is not installed.
            RemoteUnavailable: The server is unreachable or cannot work now; it may have accepted the run.
                RemoteRefused, RemoteMisbehaved: The server refuses the run, or its answer is too large.
        """
        import httpx2

        if self._client is None:
            # Making one reads the certificates of the system.
            made = await asyncio.to_thread(_client)
            self._client = self._client or made
        headers = {"Content-Type": "application/json", **signed(secret, body, now=self._clock.now())}
        headers |= {} if key is None else {IDEMPOTENCY_KEY: key}
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as answer:
                return await self._taken(answer)
        except httpx2.RequestError as error:
            why = f"the other server did not answer: {type(error).__name__}"
            raise RemoteUnavailable(why) from error
        except httpx2.InvalidURL as error:
            raise RemoteRefused("the runner's url is not a valid URL") from error

    async def _taken(self, answer: "httpx2.Response") -> bytes | None:
        status = answer.status_code
        if status == 202:
            return None
        if status == 200:
            return await _body_of(answer)
        if status >= 500 or status in _PASSING:
            wait = retry_after_ms(answer.headers, now=self._clock.now())
            told = f"the other server answered with status {status}"
            raise RemoteUnavailable(told, value=status, retry_after_ms=wait)
        raise RemoteRefused(f"the other server answered with status {status}", value=status)

    async def close(self) -> None:
        """Close the connections; a repeated call has no effect."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _body_of(answer: "httpx2.Response") -> bytes:
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > LARGEST_BODY:
            raise RemoteMisbehaved(f"the other server's answer exceeds {LARGEST_BODY} bytes")
    return bytes(body)


def check_installed() -> None:
    """Refuse to begin without the HTTP client.

    Raises:
        MissingExtra: The HTTP client is not installed.
    """
    try:
        import httpx2  # noqa: F401 - whether it can be had
    except ImportError as error:
        raise MissingExtra(
            f"runners of the kind http require {error.name}, which is not installed",
            value=error.name,
            remedy=install_command("openai"),
        ) from error


def _client() -> "httpx2.AsyncClient":
    import httpx2

    # Nothing from the environment: neither a proxy nor a netrc gets to see the signed request.
    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    return httpx2.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False)
