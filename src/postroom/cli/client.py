"""How a command reaches the running server: finds it, calls its tools and its administration.

Standard library only, since every command and the stdio entry go through here.
"""

import itertools
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from postroom.app import places
from postroom.cli.answers import events, protocol_failure, refused, tool_result
from postroom.cli.wire import ANSWER_TIMEOUT, Call, Endpoint, Reply, exchange, parts
from postroom.contracts.errors import ConfigError, PostroomError, ServerUnavailable

PROTOCOL_VERSION: Final = "2025-11-25"
_LARGEST_TOKEN: Final = 4096
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def locate(environment: Mapping[str, str], *, data_dir: Path | None = None) -> Endpoint:
    """Return where the server is: `POSTROOM_URL` names it, or the note that a server of this machine left.

    Raises:
        ServerUnavailable: nobody names one.
        ConfigError: the address, the note or the token file cannot be read.
    """
    folder = data_dir or places.data_dir(environment)
    named = environment.get("POSTROOM_URL", "")
    note = None if named else _note(folder)
    said = environment.get("POSTROOM_MCP_PATH") or (note.mcp_path if note else "mcp")
    mcp_path = "/" + said.strip("/")
    url = (note.url if note else named).rstrip("/").removesuffix(mcp_path)
    host = parts(url).hostname
    token = environment.get("POSTROOM_TOKEN", "")
    if not token and (not named or host in _LOOPBACK):
        # A token of this machine's server is no business of another machine's.
        token = _kept_token(places.token_file(folder))
    agent_token = environment.get("POSTROOM_AGENT_TOKEN", "")
    return Endpoint(url=url, mcp_path=mcp_path, token=_plain(token), agent_token=_plain(agent_token))


def _note(folder: Path) -> places.ServerNote:
    note = places.read_server_note(folder)
    if note is None:
        raise ServerUnavailable(f"no server has left a note in {folder}", value=str(folder))
    return note


def _kept_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_TOKEN).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(
            f"the token file {path} cannot be read: {error.strerror}",
            value=str(path),
            remedy="run this as the server's user, or set POSTROOM_TOKEN",
        ) from error


def _plain(token: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            "a token holds characters that no token has", remedy="set it again, without line ends"
        )
    return token


class Server:
    """The running server, as commands use it."""

    def __init__(self, endpoint: Endpoint, *, timeout: timedelta = ANSWER_TIMEOUT) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._ids = itertools.count(1)

    @classmethod
    def find(cls, *, data_dir: Path | None = None, timeout: timedelta = ANSWER_TIMEOUT) -> "Server":
        """Return the server that this process's environment leads to; it may turn out not to answer.

        Raises:
            ServerUnavailable: nobody names one.
            ConfigError: the address, the note or the token file cannot be read.
        """
        return cls(locate(places.environment(), data_dir=data_dir), timeout=timeout)

    def call_tool(self, name: str, arguments: Mapping[str, object]) -> object:
        """Call a tool and return its plain answer; arguments that are None are left away.

        Raises:
            ServerUnavailable: nobody answers, or not in time; the call may have been done.
            PostroomError: the tool refused; of the class that its code belongs to.
        """
        given = {key: value for key, value in arguments.items() if value is not None}
        named = next(self._ids)
        document = {
            "jsonrpc": "2.0",
            "id": named,
            "method": "tools/call",
            "params": {"name": name, "arguments": given},
        }
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": PROTOCOL_VERSION}
        answer = _answer_to(named, self._exchange("POST", self.endpoint.mcp_path, document, headers))
        if isinstance(error := answer.get("error"), Mapping):
            raise protocol_failure(error)
        return tool_result(answer.get("result"))

    def admin(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """Ask the administration and return its plain answer.

        Raises:
            ServerUnavailable: nobody answers, or not in time.
            PostroomError: it refused; of the class that its code belongs to.
        """
        reply = self._exchange(method, path, body, {"Accept": "application/json"})
        found = reply.json()
        if not 200 <= reply.status < 300:
            raise refused(reply)
        if not isinstance(found, dict):
            raise PostroomError(f"{path} answered with {reply.content_type or 'nothing'}, not with an object")
        return found

    def is_ready(self) -> bool:
        """Return whether the server says of itself that it works."""
        try:
            return (
                exchange(self.endpoint, Call(method="GET", path="/readyz"), timeout=self._timeout).status
                == 200
            )
        except ServerUnavailable:
            return False

    def _exchange(
        self, method: str, path: str, body: Mapping[str, object] | None, headers: Mapping[str, str]
    ) -> Reply:
        content = None if body is None else json.dumps(body).encode()
        typed = {} if content is None else {"Content-Type": "application/json"}
        call = Call(method=method, path=path, body=content, headers={**headers, **typed})
        return exchange(self.endpoint, call, timeout=self._timeout)


def _answer_to(named: int, reply: Reply) -> dict[str, object]:
    """Return the JSON-RPC answer to a request, from a plain body or the last event of a stream.

    Raises:
        PostroomError: the answer holds none.
    """
    if reply.content_type == "text/event-stream":
        pieces = iter((reply.body, b""))
        documents = [json.loads(data) for data in events(lambda _: next(pieces))]
    else:
        documents = [reply.json()]
    for found in documents:
        if (
            isinstance(found, dict)
            and found.get("id") in (named, None)
            and ("result" in found or "error" in found)
        ):
            return found
    if not 200 <= reply.status < 300:
        raise refused(reply)
    raise PostroomError(
        "the server's answer is no answer to the call",
        value=reply.content_type,
        remedy="see `postroom status`",
    )
