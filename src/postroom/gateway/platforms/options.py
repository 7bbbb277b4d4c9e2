"""The types of values in platform tables, and the remedy for an invalid secret."""

from typing import Annotated, Final
from urllib.parse import urlsplit

from msgspec import Meta

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
Line = Annotated[str, Meta(pattern=r"^[\x20-\x7e]+\Z", extra={"write": "a text of one line in ASCII"})]
FilePath = Annotated[Line, Meta(extra={"path": True})]
"""A path. A relative path is resolved against the folder of `gateway.toml`."""


def _proxy(value: object) -> object:
    if isinstance(value, str) and "@" in value:
        raise ValueError("the proxy's address contains a password; use a proxy without a password")
    return value


Proxy = Annotated[
    str,
    Meta(
        pattern="^https?://",
        extra={"read": _proxy, "write": "an address that begins with http:// or https://"},
    ),
]


def secret_remedy(name: str, what: str) -> str:
    """Return the remedy text for a missing or invalid secret."""
    return (
        f"put {what} into an environment variable or a private file, and set `{name}_env` or "
        f"`{name}_file` to its name"
    )


def refuse_address(name: str, url: str, *, plain: bool = False, query: bool = False) -> None:
    """Check that a value is the address of a server, without a user name or password.

    If `plain` is false, only addresses of this machine may use `http`.

    Raises:
        ValueError: The address is invalid. The error does not quote it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    secure = bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and (plain or host in LOOPBACK))
    )
    if not secure or port == 0 or "@" in parts.netloc or parts.fragment or (parts.query and not query):
        raise ValueError(f"`{name}` must be a URL that begins with {'http:// or ' if plain else ''}https://")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"`{name}` contains a character that is not allowed in a URL")
