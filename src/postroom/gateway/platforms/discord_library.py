"""The REST calls and the gateway connection of one bot. Only this module uses discord.py.

The library handles heartbeats, compression, RESUME and the rate-limit buckets. postroom itself reconnects,
reads updates and classifies failures. The library's own loop is not suitable: it reads updates without limit,
pauses for up to 17 minutes, and ends at the first unreadable update. Therefore, this module uses the
library's socket directly, through four undocumented names: `http.Route`,
`gateway.DiscordWebSocket.from_client`, its `_discord_parsers`, and `gateway.ReconnectWebSocket`. A test fails
if one of these names changes.
"""

import asyncio
import logging
import math
import warnings
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from postroom.contracts.errors import MissingExtra, ServerUnavailable
from postroom.contracts.messages import Json
from postroom.extras import install_command
from postroom.gateway.platforms.base import bounded

if TYPE_CHECKING:
    from discord.gateway import DiscordWebSocket

Heard = Callable[[str, object], None]
OPEN_SECONDS = 30.0
CLOSE_SECONDS = 2.0
LOGIN_SECONDS = 60.0
"""The time limit for a login, which is long because the library retries after failures of Discord."""
MAX_WAIT_SECONDS = 30.0
"""The longest pause for which the library waits when Discord asks for it. Longer pauses are reported."""
FORGET = 4_000
"""The close code after which Discord keeps the session, so that it can be resumed."""
GOODBYE = 1_000
ANSWERED_IN_BETWEEN = frozenset({502, 504, 524})
"""Status codes of a proxy or load balancer, with which Discord may still have performed the request."""
FATAL = frozenset({4004, 4010, 4011, 4012, 4013, 4014})
"""Close codes after which Discord accepts no further connection."""
HEARD = (
    "READY",
    "RESUMED",
    "MESSAGE_CREATE",
    "MESSAGE_UPDATE",
    "MESSAGE_DELETE",
    "MESSAGE_DELETE_BULK",
    "INTERACTION_CREATE",
    "CHANNEL_UPDATE",
    "THREAD_UPDATE",
)


class RestFailure(Exception):
    """Discord refused a request or did not answer.

    `taken` is true if Discord may have performed the request.
    """

    def __init__(
        self, text: str, *, status: int = 0, code: int = 0, wait_ms: int | None = None, taken: bool = False
    ) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status, or 0 if there was no answer."""
        self.code = code
        """Discord's own error code."""
        self.wait_ms = wait_ms
        self.taken = taken


class Cut(Exception):
    """The gateway connection to Discord ended.

    `resumable` is true if Discord will send the missed updates.
    """

    def __init__(self, *, resumable: bool, unreadable: bool = False) -> None:
        super().__init__("the connection to Discord's gateway ended")
        self.resumable = resumable
        self.unreadable = unreadable
        """Whether the connection ended because the library could not read the received data."""


class Refused(Exception):
    """Discord permanently refuses connections of the bot.

    `code` is the close code of the connection, or 401.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"Discord rejected the connection ({code})")
        self.code = code


def load() -> None:
    """Import the library for Discord.

    Call `load` on a thread, because the import takes almost a second.

    Raises:
        MissingExtra: The library is not installed.
    """
    try:
        with warnings.catch_warnings():
            # a warning about voice, which postroom does not use
            warnings.simplefilter("ignore", DeprecationWarning)
            import discord.gateway
            import discord.http  # noqa: F401 - both are found by the imports in functions
    except ImportError as error:
        raise MissingExtra(
            "the library discord.py, which the Discord channel needs, is not installed",
            value=error.name,
            remedy=install_command("discord"),
        ) from error
    logger = logging.getLogger("discord")
    if logger.level < logging.ERROR:
        # at lower levels, the library logs messages, and addresses with secrets
        logger.setLevel(logging.ERROR)


def direct(base_url: str) -> None:
    """Set the address of Discord's API for the whole process."""
    from discord.http import Route

    Route.BASE = base_url


class Bot:
    """One bot's connections to Discord.

    Updates are passed to `heard` in the order of their arrival. `heard` must not block.
    """

    def __init__(self, token: str, heard: Heard, *, timeout_seconds: float) -> None:
        self._token = token
        self._heard = heard
        self._timeout = timeout_seconds
        import discord

        intents = discord.Intents.none()
        intents.guilds = intents.guild_messages = intents.dm_messages = intents.message_content = True
        self._client = discord.Client(
            intents=intents,
            max_messages=None,
            max_ratelimit_timeout=MAX_WAIT_SECONDS,
            chunk_guilds_at_startup=False,
        )
        self._socket: DiscordWebSocket | None = None

    def __repr__(self) -> str:
        return "Bot()"

    async def login(self) -> str:
        """Check the token and return the bot's own id.

        Raises:
            Refused: The token is invalid.
            RestFailure: Discord gave no answer, or an unexpected one.
        """
        import discord

        try:
            with _translate_errors():
                async with asyncio.timeout(LOGIN_SECONDS):
                    await self._client.login(self._token)
        except discord.LoginFailure:
            raise Refused(401) from None
        user = self._client.user
        if user is None:
            raise RestFailure("Discord did not identify the bot")
        return str(user.id)

    # REST.

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Json = None,
        form: Sequence[dict[str, Any]] | None = None,
        query: dict[str, str] | None = None,
        **ids: str,
    ) -> Any:
        """Call Discord's REST API within its rate limits, and return the parsed response.

        Each placeholder in `path` is replaced by the quoted value from `ids`.

        Raises:
            RestFailure: Discord refused the request or did not answer.
        """
        import aiohttp
        from discord.http import Route

        fields: dict[str, Any] = {
            "timeout": aiohttp.ClientTimeout(total=self._timeout, sock_connect=OPEN_SECONDS)
        }
        if json is not None:
            fields["json"] = json
        if query is not None:
            fields["params"] = query
        with _translate_errors():
            return await self._client.http.request(Route(method, path, **ids), form=form, **fields)

    async def fetch(self, url: str, *, max_bytes: int) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file from an address that the caller has checked.

        Raises:
            TooLarge: The file has more than `max_bytes`. Nothing beyond that was read.
            ServerUnavailable: The file could not be fetched.
        """
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self._timeout)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.get(url, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise _fetch_error(f"answered {response.status}")
                async for piece in bounded(response.content.iter_any(), max_bytes):
                    yield piece
        except (OSError, aiohttp.ClientError, ValueError) as error:
            raise _fetch_error(type(error).__name__) from None

    # The gateway.

    async def open(self, *, resume: bool) -> None:
        """Open the gateway connection. If `resume` is true, the old session is resumed if possible.

        The first call of `poll` receives the first message: READY, RESUMED or a refusal.

        Raises:
            Refused: Discord does not accept this bot.
            Cut: The connection ended at once.
            RestFailure: Discord did not return the address of its gateway.
        """
        import yarl
        from discord.gateway import DiscordWebSocket

        # after unreadable data, the old connection may still be open, and send heartbeats
        await self.hang_up()
        last, self._socket = self._socket, None
        if resume and last is not None and last.session_id is not None:
            # keep it until the new connection exists: another attempt must begin at the same position
            self._socket = last
            known_values: dict[str, Any] = {
                "session": last.session_id,
                "sequence": last.sequence,
                "resume": True,
            }
            address = last.gateway
        else:
            value = await self.request("GET", "/gateway/bot")
            try:
                starts = value["session_start_limit"]
                if starts["remaining"] <= 0:
                    raise RestFailure(
                        "Discord allows no further sessions at the moment",
                        status=429,
                        wait_ms=starts["reset_after"],
                    )
                known_values, address = {}, yarl.URL(str(value["url"]))
            except (KeyError, TypeError):
                raise RestFailure("Discord did not return the address of its gateway") from None
        with _convert_end():
            async with asyncio.timeout(OPEN_SECONDS):
                socket = await DiscordWebSocket.from_client(
                    self._client, gateway=address, initial=True, **known_values
                )
        socket._discord_parsers = {name: partial(self._heard, name) for name in HEARD}  # noqa: SLF001 - see the module
        self._socket = socket

    async def poll(self) -> None:
        """Receive and process the next message from the gateway.

        Raises:
            Cut: The connection ended.
            Refused: The connection ended permanently.
        """
        socket = self._socket
        if socket is None:
            raise Cut(resumable=False)
        with _convert_end():
            await socket.poll_event()

    async def hang_up(self, code: int = FORGET) -> None:
        """Close the gateway connection, so that no more updates arrive.

        After the session is resumed, Discord sends the updates that were not read.
        """
        if self._socket is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._socket.close(code)
            except (TimeoutError, OSError, RuntimeError):
                return

    async def close(self) -> None:
        """Close all connections. A second call has no effect."""
        await self.hang_up(GOODBYE)
        self._socket = None
        await self._client.http.close()


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert the exceptions of a REST call to `RestFailure`."""
    import aiohttp
    import discord

    try:
        yield
    except discord.RateLimited as error:
        wait = math.ceil(error.retry_after * 1000)
        raise RestFailure("Discord's rate limit was exceeded", status=429, wait_ms=wait) from None
    except discord.HTTPException as error:
        text = f": {error.text[:200]}" if error.code else ""
        raise RestFailure(
            f"Discord answered {error.status} ({error.code}){text}",
            status=error.status,
            code=error.code,
            wait_ms=_retry_after(error.response.headers.get("Retry-After")) if error.status == 429 else None,
            taken=error.status in ANSWERED_IN_BETWEEN,
        ) from None
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise RestFailure(f"Discord could not be reached ({type(error).__name__})") from None
    except RuntimeError:
        raise RestFailure("the connection to Discord is closed") from None
    except (OSError, aiohttp.ClientError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise RestFailure(f"Discord did not answer ({type(error).__name__})", taken=True) from None


@contextmanager
def _convert_end() -> Iterator[None]:
    """Convert the exceptions that end a gateway connection to `Cut` or `Refused`."""
    import aiohttp
    from discord.errors import ConnectionClosed
    from discord.gateway import ReconnectWebSocket

    try:
        yield
    except ReconnectWebSocket as error:
        raise Cut(resumable=error.resume) from None
    except ConnectionClosed as error:
        if error.code in FATAL:
            raise Refused(error.code) from None
        raise Cut(resumable=error.code != GOODBYE) from None
    except (OSError, aiohttp.ClientError):
        raise Cut(resumable=True) from None
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, zlib.error):
        raise Cut(resumable=True, unreadable=True) from None


def _retry_after(header: str | None) -> int | None:
    """Convert the seconds in a header to milliseconds."""
    try:
        return None if header is None else max(math.ceil(float(header) * 1000), 0)
    except (ValueError, OverflowError):
        return None


def _fetch_error(why: str) -> ServerUnavailable:
    return ServerUnavailable(
        f"Discord's file server did not return the file ({why})",
        remedy="ask the sender to send the file again",
    )
