"""Sends a request to this machine's server within a fixed time, on a plain socket.

The module imports almost nothing. The C parts of `json` parse JSON, without the regular expressions that
`json` also loads, because the import of `json` takes half as long as the start of Python. If the C parts are
missing, `json` itself is used.

The address of the server is read from the environment in the same way as in every command. A test compares
the two.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

BUDGET = 0.3
"""The time limit in seconds for the whole call."""
LARGEST_ANSWER = 64 * 1024
_LARGEST_FILE = 16 * 1024
_LOOPBACK = {
    "127.0.0.1": "127.0.0.1",
    "localhost": "127.0.0.1",
    "0.0.0.0": "127.0.0.1",  # noqa: S104 - where a server may listen
    "::1": "::1",
    "::": "::1",
}


class Unreachable(Exception):
    """Raised when no valid HTTP response has arrived in time."""


def hook_environment() -> Mapping[str, str]:
    """Return the environment variables of this process."""
    return os.environ  # noqa: TID251 - as above


class Endpoint:
    """The address of the server, and the caller's tokens."""

    def __init__(self, host: str, port: int, prefix: str, tokens: tuple[str, str]) -> None:
        self.host = host
        self.port = port
        self.prefix = prefix
        self.token, self.agent_token = tokens


def read_endpoint(environment: Mapping[str, str]) -> Endpoint | None:
    """Return the address of this machine's server with tokens, or None if no address is known.

    Raises:
        OSError, ValueError, KeyError, TypeError: The note or the token cannot be read.
    """
    folder = data_dir(environment)
    url, mcp_path = environment.get("POSTROOM_URL", ""), environment.get("POSTROOM_MCP_PATH", "") or "mcp"
    if not url:
        note = _read(os.path.join(folder, "server.json"))  # noqa: PTH118 - no pathlib here
        if not note:
            return None
        value = read(note)
        url = str(value["url"]) if isinstance(value, dict) else ""
    url = url.rstrip("/").removesuffix("/" + mcp_path.strip("/"))
    token = environment.get("POSTROOM_TOKEN", "")
    if not token:
        token = _read(os.path.join(folder, "token")).decode("ascii").strip()  # noqa: PTH118 - as above
    tokens = (token, environment.get("POSTROOM_AGENT_TOKEN", ""))
    scheme, _, rest = url.partition("://")
    place, _, prefix = rest.rstrip("/").partition("/")
    name, _, port = place.rpartition(":") if ":" in place and place[-1] != "]" else (place, "", "")
    host = _LOOPBACK.get(name.strip("[]").lower())
    if (
        scheme != "http"
        or host is None
        or not all(token.isascii() and token.isprintable() for token in tokens)
    ):
        return None
    return Endpoint(host, int(port or 80), f"/{prefix}" if prefix else "", tokens)


def data_dir(environment: Mapping[str, str], *, platform: str = sys.platform) -> str:
    """Return the data folder, which contains the server note and the token."""
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
    if chosen := environment.get("POSTROOM_DATA_DIR"):
        if chosen == "~" or chosen.startswith("~/"):
            return os.path.join(home, chosen[2:])  # noqa: PTH118 - no pathlib here
        return os.path.abspath(chosen)  # noqa: PTH100 - links stay as they are
    if platform == "darwin":
        return f"{home}/Library/Application Support/postroom"
    base = environment.get("XDG_DATA_HOME", "")
    return os.path.join(base if os.path.isabs(base) else f"{home}/.local/share", "postroom")  # noqa: PTH117, PTH118


def ask(endpoint: Endpoint | None, path: str, body: bytes, *, budget: float = BUDGET) -> tuple[int, bytes]:
    """Post a JSON document to the server, and return the status and the body of the response.

    Raises:
        Unreachable: There was no response in time.
    """
    if endpoint is None:
        raise Unreachable
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    agent = f"Postroom-Agent-Token: {endpoint.agent_token}\r\n" if endpoint.agent_token else ""
    head = (
        f"POST {endpoint.prefix}{path} HTTP/1.1\r\nHost: {host}:{endpoint.port}\r\nConnection: close\r\n"
        f"Authorization: Bearer {endpoint.token}\r\nUser-Agent: postroom-hook\r\n"
        f"{agent}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        answer = _exchange(endpoint, head.encode("ascii") + body, monotonic() + budget)
        top, _, content = answer.partition(b"\r\n\r\n")
        length, words = _length(top), top.split(b"\r\n", 1)[0].split(b" ")
        if not words[0].startswith(b"HTTP/1.") or len(words) < 2 or len(content) < length:
            raise ValueError("the answer is incomplete")
        return int(words[1]), content[:length]
    except (OSError, ValueError) as error:
        raise Unreachable from error


def _exchange(endpoint: Endpoint, request: bytes, until: float) -> bytes:
    import _socket  # is sufficient, and its import takes a third of the time of `socket`

    family = _socket.AF_INET6 if ":" in endpoint.host else _socket.AF_INET
    line = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        line.settimeout(_seconds_left(until))
        line.connect((endpoint.host, endpoint.port))
        line.settimeout(_seconds_left(until))
        line.sendall(request)
        data = top = mark = body = b""
        while not mark or len(body) < _length(top):
            line.settimeout(_seconds_left(until))
            piece = line.recv(65_536)
            if not piece:
                break
            data += piece
            if len(data) > LARGEST_ANSWER:
                raise ValueError("the answer is too large")
            top, mark, body = data.partition(b"\r\n\r\n")
        return data
    finally:
        line.close()


def _seconds_left(until: float) -> float:
    left = until - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _length(head: bytes) -> int:
    for row in head.split(b"\r\n")[1:]:
        name, _, value = row.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    raise ValueError("the response has no Content-Length")


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.read(descriptor, _LARGEST_FILE)
    finally:
        os.close(descriptor)


_SPACE = " \t\n\r"


class _Plain:
    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: Mapping[str, str] = {}


def read(raw: bytes) -> object:
    """Parse a JSON document in UTF-8.

    Raises:
        ValueError: The text is not JSON, or not UTF-8.
        RecursionError: The document is nested too deeply.
    """
    text = raw.decode("utf-8")
    try:
        from _json import make_scanner
    except ImportError:
        import json

        return json.loads(text)
    scan = make_scanner(_Plain)  # type: ignore[arg-type]  # it reads these attributes of anything
    try:
        result, end = scan(text, len(text) - len(text.lstrip(_SPACE)))
    except StopIteration as stop:
        raise ValueError("the answer is not JSON") from stop
    if text[end:].strip(_SPACE):
        raise ValueError("the answer has text after the JSON")
    return result


def written(value: object) -> str:
    """Return a value as ASCII JSON text.

    The value may contain texts, integers, booleans, lists and mappings.
    """
    try:
        from _json import encode_basestring_ascii as quoted
    except ImportError:
        import json

        quoted = json.dumps
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(name)}: {written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    raise TypeError(type(value).__name__)
