"""Speaks JSON-RPC 2.0 with a program, one JSON object per line; other output is an error.

`Peer` does no I/O. The memory of a peer is limited, because it holds only one line and its own open requests.
ACP agents and the app-server of Codex use this protocol.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.contracts.messages import Json, storable
from postroom.executors.processes.output import ERRORS_KEPT, MIN_LINE_BYTES, Tail

MAX_NOISE: Final = 1_000
"""Maximum number of lines without JSON that are skipped.

Some agents print text between protocol messages.
"""
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
AUTH_REQUIRED: Final = -32000
_FIELDS: Final[Mapping[str, Any]] = {}


class ProtocolFault(Exception):
    """Raised for output that violates the protocol; the text of the error contains no secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The error with which the program has answered a request."""

    code: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The program's answer to a request of the server."""

    method: str
    result: Mapping[str, Any] = field(default_factory=dict)
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request of the program, which the server must answer."""

    id: int | str
    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A notification of the program, which needs no answer."""

    method: str
    params: Mapping[str, Any]


class Peer:
    """The server's end of a JSON-RPC connection to a program."""

    def __init__(
        self, say: Callable[[Mapping[str, Json]], None], *, longest_line: int = MIN_LINE_BYTES
    ) -> None:
        """`say` sends a message to the program, and `longest_line` is the maximum length of a line."""
        self._send = say
        self._longest = longest_line
        self._line = bytearray()
        self._noises = 0
        self._asked: dict[int, str] = {}
        self._next = 0
        self.noise = Tail(ERRORS_KEPT)
        """The end of the output that did not belong to the protocol."""

    def ask(self, method: str, params: Mapping[str, Json]) -> None:
        """Send a request; a later call of `process_chunk` or `read` returns the answer."""
        self._asked[self._next] = method
        self._say({"id": self._next, "method": method, "params": params})
        self._next += 1

    def tell(self, method: str, params: Mapping[str, Json]) -> None:
        """Send a notification to the program."""
        self._say({"method": method, "params": params})

    def answer(self, id: int | str, result: Mapping[str, Json]) -> None:
        """Answer a request from the program."""
        self._say({"id": id, "result": result})

    def refuse(self, id: int | str, code: int, why: str) -> None:
        """Answer a request from the program with an error."""
        self._say({"id": id, "error": {"code": code, "message": why}})

    def _say(self, message: Mapping[str, Json]) -> None:
        self._send({"jsonrpc": "2.0", **message})

    def process_chunk(self, chunk: bytes) -> Iterator[Answer | Asked | Told]:
        """Process a piece of the program's output, and yield each complete message.

        Raises:
            ProtocolFault: The output violates the protocol, and later output cannot be read either.
        """
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._begin(piece)
            line = bytes(self._line).strip()
            self._line.clear()
            if not line:
                continue
            if not line.startswith(b"{"):
                self.noise.add(line + b"\n")
                self._noises += 1
                if self._noises > MAX_NOISE:
                    raise ProtocolFault(f"wrote more than {MAX_NOISE} lines that are not JSON objects")
                continue
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                self.noise.add(line[-ERRORS_KEPT:] + b"\n")
                raise ProtocolFault("wrote a line that begins like a JSON object and is invalid") from error
            yield self.read(message)
        self._begin(rest)

    def _begin(self, piece: bytes) -> None:
        if len(self._line) + len(piece) > self._longest:
            raise ProtocolFault(f"wrote a line of more than {self._longest} bytes")
        self._line += piece

    def read(self, message: Mapping[str, Any]) -> Answer | Asked | Told:
        """Convert a JSON object to a protocol message.

        Raises:
            ProtocolFault: The object is not a protocol message, or answers a request that was never sent.
        """
        if "method" in message:
            method, params, id = message["method"], message.get("params"), message.get("id")
            if not isinstance(method, str) or (params is not None and not isinstance(params, dict | list)):
                raise ProtocolFault(
                    "sent a call whose method is not text, or whose parameters are not an object"
                )
            named = params if isinstance(params, dict) else _FIELDS
            if id is None:
                return Told(method=method, params=named)
            if isinstance(id, bool) or not isinstance(id, int | str):
                raise ProtocolFault("sent a call whose id is neither a number nor text")
            return Asked(id=id, method=method, params=named)
        if "id" in message:
            id = message["id"]
            method = None if isinstance(id, bool) or not isinstance(id, int) else self._asked.pop(id, None)
            error = message.get("error")
            if method is None:
                raise ProtocolFault("answered a request that it never received")
            if error is not None:
                fields = error if isinstance(error, dict) else _FIELDS
                code = fields.get("code")
                text, data = str(fields.get("message") or "no reason was given"), fields.get("data")
                more = "" if data is None else f" {json.dumps(data, ensure_ascii=False)}"
                known_number = code if isinstance(code, int) and abs(code) < 1 << 31 else 0
                return Answer(
                    method=method,
                    refusal=Refusal(code=known_number, text=storable(f"{text}{more}"[:ERRORS_KEPT])),
                )
            result = message.get("result")
            if result is not None and not isinstance(result, dict):
                raise ProtocolFault(f"answered {method!r} with a value that is not an object")
            return Answer(method=method, result=result or _FIELDS)
        raise ProtocolFault("wrote a message that is neither a request, a notification nor an answer")
