"""Parses the head of a request for the guard, without decisions and without I/O."""

import ipaddress
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import quote, unquote_to_bytes

from starlette.types import Scope

MAX_PATH_LENGTH: Final = 4096
"""Maximum number of characters in a path.

Python refuses to parse numbers of 4,300 digits and more. Because of this limit, no route gets such a number.
"""
MAX_QUERY_LENGTH: Final = 8192

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9][a-z0-9._-]{0,254})(?::([0-9]{1,5}))?", re.I)
_ORIGIN: Final = re.compile(r"(https?)://([^/?#@\s]+)", re.I)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BAD_IN_PATH: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]|(^|/)\.\.?(/|$)")
_SINGLE: Final = (b"idempotency-key", b"host", b"origin", b"content-length", b"authorization")
"""The headers that may occur only once. Otherwise, layers could use different values."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Headers = Iterable[tuple[bytes, bytes]]


class Malformed(Exception):
    """The request is malformed. The text states the reason, and never quotes the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A host name or address, in lower case and without brackets, and the port, if there is one."""

    name: str
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The parts of a request that decide whether it is accepted."""

    method: str
    path: str
    host: Authority | None
    origin: str | None
    bearer: str | None = field(default=None, repr=False)
    """The bearer token, or None if the request has none."""
    cookie: str = field(default="", repr=False)
    content_length: int = 0
    wants_page: bool = False
    target: str = "/"
    """The path and query of a reading request as they were sent, or `/` for a request that changes data."""

    @classmethod
    def read(cls, scope: Scope) -> Self:
        """Read the head from an ASGI scope.

        Raises:
            Malformed: The path or a header is malformed.
        """
        path, sent = scope["path"], scope.get("raw_path") or b""
        query = scope.get("query_string", b"")
        if max(len(path), len(sent)) > MAX_PATH_LENGTH:
            raise Malformed(f"the path exceeds {MAX_PATH_LENGTH} bytes")
        if len(query) > MAX_QUERY_LENGTH:
            raise Malformed(f"the query exceeds {MAX_QUERY_LENGTH} bytes")
        if not query.isascii():
            raise Malformed("the query contains bytes that must be percent-encoded")
        if _BROKEN_ESCAPE.search(sent):
            raise Malformed("the path contains a percent sign without two hexadecimal digits")
        try:
            unquote_to_bytes(sent).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Malformed("the path is not UTF-8") from error
        if not path.startswith("/") or _BAD_IN_PATH.search(path):
            raise Malformed("the path contains control characters, backslashes or dot segments")
        # The values of each header.
        values: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            values.setdefault(name, []).append(value.decode("latin-1").strip())
        for name in _SINGLE:
            if len(values.get(name, ())) > 1:
                raise Malformed(f"the header {name.decode()} occurs {len(values[name])} times")
        length = values.get(b"content-length", ["0"])[0]
        scheme, _, token = values.get(b"authorization", [""])[0].partition(" ")
        if not (length.isascii() and length.isdigit() and len(length) <= 18):
            raise Malformed("the header content-length is not a valid length")
        target = (sent or quote(path).encode()) + (b"?" + query if query else b"")
        return cls(
            method=scope["method"],
            path=path,
            host=read_authority(values.get(b"host", [""])[0]),
            origin=values.get(b"origin", [None])[0],
            bearer=token.strip() if scheme.lower() == "bearer" else None,
            cookie="; ".join(values.get(b"cookie", ())),
            content_length=int(length),
            wants_page="text/html" in ",".join(values.get(b"accept", ())).lower(),
            target=target.decode("latin-1") if scope["method"] == "GET" else "/",
        )


def choose_request_id(headers: Headers) -> str:
    """Return the id that the caller gave the request, or a new id if it is missing or invalid."""
    values = [value.decode("latin-1") for name, value in headers if name == b"x-request-id"]
    if len(values) == 1 and _REQUEST_ID.fullmatch(values[0]):
        return values[0]
    return secrets.token_hex(8)


def read_authority(text: str) -> Authority | None:
    """Parse `name`, `name:port` or `[address]:port`, and return None for any other text."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    port = int(match[2]) if match[2] else None
    name = match[1].lower()
    if name.startswith("["):
        try:
            name = ipaddress.IPv6Address(name[1:-1]).compressed
        except ValueError:
            return None
    return None if port is not None and port > 65535 else Authority(name=name, port=port)


def is_own_origin(origin: str, host: Authority, trusted: frozenset[str]) -> bool:
    """Return whether an origin belongs to this server.

    The origin must have the host and port of the request, or a host name that the operator trusts. An origin
    with a trusted host name must have the port of the request or the default port, as behind an https proxy.
    Another port on the same machine is a foreign origin.
    """
    match = _ORIGIN.fullmatch(origin)
    author = read_authority(match[2]) if match else None
    if match is None or author is None:
        return False
    usual = _DEFAULT_PORTS[match[1].lower()]
    port = author.port or usual
    own_port = host.port or usual
    if author.name == host.name and author.name not in trusted:
        return match[1].lower() == "http" and port == own_port  # only proxies have https
    if author.name == host.name:
        return port == own_port
    return author.name in trusted and port in (usual, own_port)
