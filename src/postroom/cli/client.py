"""Connects commands to the running server: finds the server, and calls its tools and administration.

This module uses only the standard library, because every command and `postroom mcp` import it.
"""

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from postroom.app import places
from postroom.cli.wire import ANSWER_TIMEOUT, LARGEST_ANSWER, Call, Endpoint, Reply, exchange, parts
from postroom.contracts import errors, progress
from postroom.contracts.errors import ConfigError, PostroomError, ServerUnavailable

PROTOCOL_VERSION: Final = "2025-11-25"
_LARGEST_TOKEN: Final = 4096
_PROGRESS_SECONDS: Final = 0.5
_PROGRESS_PATIENCE: Final = timedelta(seconds=5)
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def locate(environment: Mapping[str, str], *, data_dir: Path | None = None) -> Endpoint:
    """Return the address and token of the server that `POSTROOM_URL` or the server note names.

    Raises:
        ServerUnavailable: The variable is not set, and there is no note.
        ConfigError: The address, the note or the token file cannot be read.
    """
    folder = data_dir or places.data_dir(environment)
    named = environment.get("POSTROOM_URL", "")
    note = None if named else places.read_server_note(folder)
    if not named and note is None:
        raise ServerUnavailable(f"no server is running for {folder}", value=str(folder))
    text = environment.get("POSTROOM_MCP_PATH") or (note.mcp_path if note else "mcp")
    mcp_path = "/" + text.strip("/")
    url = (note.url if note else named).rstrip("/").removesuffix(mcp_path)
    host = parts(url).hostname
    token = environment.get("POSTROOM_TOKEN", "")
    if not token and (not named or host in _LOOPBACK):
        # Never send the token of this machine's server to a server on another machine.
        token_file = places.token_file(folder)
        try:
            with token_file.open("rb") as file:
                token = file.read(_LARGEST_TOKEN).decode("ascii", "replace").strip()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(
                f"the token file {token_file} cannot be read: {error.strerror}",
                value=str(token_file),
                remedy="run this command as the user that runs the server, or set POSTROOM_TOKEN",
            ) from error
    agent_token = environment.get("POSTROOM_AGENT_TOKEN", "")
    return Endpoint(
        url=url, mcp_path=mcp_path, token=_plain(token or agent_token), agent_token=_plain(agent_token)
    )


def _plain(token: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            "the token contains characters that are not allowed in a token",
            remedy="set the token again, without line breaks",
        )
    return token


class Server:
    """A client for the running server, which the commands use."""

    def __init__(self, endpoint: Endpoint, *, timeout: timedelta = ANSWER_TIMEOUT) -> None:
        self.endpoint = endpoint
        self._tools = f"{endpoint.mcp_path}/full"
        self._timeout = timeout
        self._ids = itertools.count(1)

    @classmethod
    def find(cls, *, data_dir: Path | None = None, timeout: timedelta = ANSWER_TIMEOUT) -> "Server":
        """Return a client for the server that the environment names, without connecting to the server.

        Raises:
            ServerUnavailable: No variable and no note names a server.
            ConfigError: The address, the note or the token file cannot be read.
        """
        return cls(locate(places.environment(), data_dir=data_dir), timeout=timeout)

    def call_tool(self, name: str, arguments: Mapping[str, object]) -> object:
        """Call an MCP tool, and return the result as plain data; arguments that are None are not sent.

        Raises:
            ServerUnavailable: There was no answer in time. The call may have been executed.
            PostroomError: The tool returned an error. The class of the exception depends on the error code.
        """
        by_key = {key: value for key, value in arguments.items() if value is not None}
        _refuse_broken_text(by_key)
        named = next(self._ids)
        document = {
            "jsonrpc": "2.0",
            "id": named,
            "method": "tools/call",
            "params": {"name": name, "arguments": by_key},
        }
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": PROTOCOL_VERSION}
        reply = self._exchange("POST", self._tools, document, headers)
        documents = [reply.json()]
        if reply.content_type == "text/event-stream":
            pieces = iter((reply.body, b""))
            documents = [json.loads(data) for data in events(lambda _: next(pieces))]
        answers = (
            item
            for item in documents
            if isinstance(item, dict)
            and item.get("id") in (named, None)
            and ("result" in item or "error" in item)
        )
        answer = next(answers, None)
        if answer is None and not 200 <= reply.status < 300:
            raise refused(reply)
        if answer is None:
            raise PostroomError(
                "the server's answer does not match the call",
                value=reply.content_type,
                remedy="run `postroom status`",
            )
        if isinstance(error := answer.get("error"), Mapping):
            raise protocol_failure(error)
        return tool_result(answer.get("result"))

    def download(self, path: str, query: Mapping[str, object]) -> bytes:
        """Send a GET request to the server, and return the response body as bytes.

        Raises:
            ServerUnavailable: There was no answer in time.
            PostroomError: The server returned an error. The class of the exception depends on its code.
        """
        reply = self._exchange("GET", with_query(path, query), None, {})
        if reply.status != 200:
            raise refused(reply)
        return reply.body

    def admin(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """Call an administration route, and return the response as plain data.

        Raises:
            ServerUnavailable: There was no answer in time.
            PostroomError: The server returned an error. The class of the exception depends on its code.
        """
        _refuse_broken_text(body or {})
        reply = self._exchange(method, path, body, {"Accept": "application/json"})
        result = reply.json()
        if not 200 <= reply.status < 300:
            raise refused(reply)
        if not isinstance(result, dict):
            raise PostroomError(
                f"{path} answered with {reply.content_type or 'no content'} instead of a JSON object"
            )
        return result

    def admin_long(
        self, doing: str, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Call an administration route that takes a long time, and show the progress of the call.

        Raises:
            ServerUnavailable, PostroomError: As for `admin`.
        """
        done, watcher = threading.Event(), progress.here()
        asker = Server(self.endpoint, timeout=_PROGRESS_PATIENCE)
        far = f"/admin/progress?{urlencode({'of': path.partition('?')[0]})}"

        def look() -> None:
            while not done.wait(_PROGRESS_SECONDS):
                try:
                    answer = asker.admin("GET", far)
                except PostroomError:  # an earlier release or a busy server: the work reports its failure
                    answer = {}
                now, at, of = (answer.get(name) for name in ("doing", "done", "total"))
                if now and isinstance(at, int) and isinstance(of, int):
                    watcher(str(now), at, of)
                else:
                    watcher(doing)

        watcher(doing)
        asking = threading.Thread(target=look, name="progress", daemon=True)
        asking.start()
        try:
            return self.admin(method, path, body)
        finally:
            done.set()
            asking.join()

    def is_ready(self) -> bool:
        """Return whether the server answers and is ready."""
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


def with_query(path: str, fields: Mapping[str, object]) -> str:
    """Return a path with a query; a list becomes one query parameter for each entry.

    Raises:
        InvalidArgument: A field is not valid UTF-8.
    """
    _refuse_broken_text(fields)
    return f"{path}?{urlencode(fields, doseq=True)}" if fields else path


def _refuse_broken_text(fields: Mapping[str, object]) -> None:
    for name, value in fields.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise errors.InvalidArgument(
                f"`{name}` is not valid UTF-8", remedy="pass text that is encoded as UTF-8"
            ) from error


_BY_CODE: Final = {kind.code: kind for kind in errors.all_errors()}

_BY_STATUS: Final[dict[int, type[errors.PostroomError]]] = {
    400: errors.InvalidArgument,
    401: errors.WrongToken,
    403: errors.NotPermitted,
    409: errors.StateError,
    413: errors.TooLarge,
    422: errors.InvalidArgument,
    429: errors.ServerUnavailable,
    502: errors.ServerUnavailable,
    503: errors.ServerUnavailable,
    504: errors.ServerUnavailable,
}
"""The error classes for responses that do not come from postroom, but from a proxy, for example."""


def events(read: Callable[[int], bytes]) -> Iterator[str]:
    """Yield the data of each event in a `text/event-stream` when the event arrives.

    Raises:
        TooLarge: An event exceeds `LARGEST_ANSWER`.
    """
    data: list[bytes] = []
    for line in _lines(read):
        if not line:
            if data:
                yield b"\n".join(data).decode("utf-8", "replace")
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    pending = bytearray()
    while chunk := read(65_536):
        pending += chunk
        if b"\n" in chunk:
            *whole, rest = pending.split(b"\n")
            yield from (bytes(line).removesuffix(b"\r") for line in whole)
            pending = rest
        if len(pending) > LARGEST_ANSWER:
            raise errors.TooLarge(f"an event of the stream exceeds {LARGEST_ANSWER} bytes")


def rebuilt(document: Mapping[str, object]) -> errors.PostroomError:
    """Return the error in an error document from the server; the error code selects the class."""
    code = str(document.get("code", ""))
    details = document.get("details")
    known_values = dict(details) if isinstance(details, Mapping) else {}
    kind = _BY_CODE.get(code)
    if kind is None:  # a code of a newer server, or a code that only HTTP responses have
        kind, known_values = errors.PostroomError, {**known_values, "code": code}
    if request_id := document.get("request_id"):
        known_values["request_id"] = request_id
    remedy = document.get("remedy")
    return kind(
        str(document.get("message") or document.get("detail") or code),
        value=document.get("value"),
        remedy=str(remedy) if remedy else None,
        details=known_values,
    )


def refused(reply: Reply) -> errors.PostroomError:
    """Return the error for a response whose status is not between 200 and 299."""
    value = reply.json()
    if isinstance(value, Mapping):
        inner = value.get("error")
        document = inner if isinstance(inner, Mapping) else value
        if isinstance(document.get("code"), str):
            return rebuilt(document)
        if isinstance(inner, Mapping):
            return protocol_failure(inner)
    kind = _BY_STATUS.get(reply.status, errors.PostroomError)
    return kind(
        f"the server answered with HTTP status {reply.status}",
        value=reply.status,
        remedy="check that the address belongs to a postroom server: `postroom status`",
    )


def protocol_failure(error: Mapping[str, object]) -> errors.PostroomError:
    """Convert a JSON-RPC error to an exception."""
    data = error.get("data")
    if isinstance(data, Mapping):
        inner = data.get("error")
        document = inner if isinstance(inner, Mapping) else data
        if isinstance(document.get("code"), str):
            return rebuilt(document)
    return errors.PostroomError(
        f"the server rejected the call: {error.get('message')}",
        value=error.get("code"),
        remedy="check that the server and this command have the same version: `postroom version`",
    )


def tool_result(result: object) -> object:
    """Return the result of an MCP tool call as plain data: an object, a list or a text.

    Raises:
        PostroomError: The tool returned an error. The class of the exception depends on the error code.
    """
    if not isinstance(result, Mapping):
        raise errors.PostroomError("the server's answer contains no result", value=result)
    structured = result.get("structuredContent")
    if result.get("isError"):
        if isinstance(structured, Mapping) and isinstance(error := structured.get("error"), Mapping):
            raise rebuilt(error)
        text = _text(result)
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if isinstance(document, dict) and isinstance(error := document.get("error"), dict):
            raise rebuilt(error)
        raise errors.InvalidArgument(text or "the tool failed without a message")
    if isinstance(structured, Mapping):
        return structured["result"] if set(structured) == {"result"} else dict(structured)
    return _text(result)


def _text(result: Mapping[str, object]) -> str:
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
