"""`postroom mcp`: forwards MCP messages between a client's pipe and the shared server.

The proxy has no mail, database or session of its own, so fifty clients need fifty small processes, but only
one server:

    stdin line ──▶ waiting ──▶ running (at most 64, a thread and an HTTP stream each) ──▶ stdout line(s)

Messages are sent concurrently, and responses are written when they arrive. Only `initialize` is sent alone,
because all later messages need the revision that it negotiates. A request that the client cancels gets no
response, and its stream is closed. Only protocol lines are written to stdout.
"""

import http.client
import json
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from postroom.app import places
from postroom.cli import protocol
from postroom.cli.client import events, locate, refused
from postroom.cli.protocol import Message
from postroom.cli.wire import Call, Endpoint, Exchange, Reply, content_type, unavailable, whole_body
from postroom.contracts.clients import CLIENT_HEADER
from postroom.contracts.errors import PostroomError, ServerUnavailable

IN_FLIGHT: Final = 64
SILENCE: Final = timedelta(minutes=5)
"""How long the server may be silent during a request. An open stream has a heartbeat every 15 s."""
GRACE: Final = timedelta(seconds=10)
"""How long requests are still answered after stdin has closed, as in `echo ... | postroom mcp`.

The first message may take long, because the server then loads its MCP code.
"""
UNWIND: Final = timedelta(seconds=2)
FIRST_PAUSE: Final = timedelta(seconds=1)
MAX_PAUSE: Final = timedelta(minutes=1)
"""The longest pause. After each failed start of the server, the pause doubles up to this value."""


class PendingRequest:
    """A message from the client, with the ids of the requests that have not been answered."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.owed = {protocol.build_id_key(named) for named in message.awaits}
        self.exchange: Exchange | None = None
        self.streams = False
        self.dropped = False

    def drop(self) -> None:
        """Abort the request, so that no further response is written."""
        self.dropped = True
        if self.exchange is not None:
            self.exchange.break_off()


class Proxy:
    """Forwards each line of the client to the server, and writes the server's lines for the client.

    `locate` finds the server. If no server accepts a connection, `start` starts a server. If the server dies,
    a request that changes nothing or has an idempotency key is sent again.
    """

    def __init__(
        self,
        locate: Callable[[], Endpoint],
        write: Callable[[bytes], None],
        log: Callable[[str], None],
        *,
        start: Callable[[], str] | None = None,
        limit: int = IN_FLIGHT,
    ) -> None:
        self._locate = locate
        self._write = write
        self._log = log
        self._start = start
        self._starting = threading.Lock()
        self._pause = FIRST_PAUSE
        self._start_refused_until = 0.0
        self._start_failure = ""
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[PendingRequest] = deque()
        self._running: list[PendingRequest] = []
        self._handshake = False
        self._version = ""
        self._client = ""
        self._marks: tuple[str, ...] = ()
        self._modern = False

    def take(self, line: bytes) -> None:
        """Accept a line from the client, without waiting for the server."""
        if not line.strip():
            return
        try:
            message = protocol.read_line(line)
        except protocol.UnreadableLine as unreadable:
            self._write(unreadable.answer)
            return
        if message.method == "notifications/cancelled" and self._cancel(message):
            return
        with self._changed:
            if message.version:
                self._version, self._modern = message.version, True
            self._client = message.client or self._client
            self._marks = self._marks or message.marks
            self._waiting.append(PendingRequest(message))
            self._start_what_fits()

    def finish(self, *, grace: timedelta = GRACE) -> None:
        """Abort open streams, and wait up to `grace` for the responses to all other requests."""
        with self._changed:
            for request in self._running:
                if request.streams:
                    request.drop()
            self._changed.wait_for(self._is_idle, grace.total_seconds())
            self._waiting.clear()
            for request in self._running:
                request.drop()
            self._changed.wait_for(self._is_idle, UNWIND.total_seconds())

    def _is_idle(self) -> bool:
        return not self._running and not self._waiting

    def _start_what_fits(self) -> None:
        while self._waiting and len(self._running) < self._limit and not self._handshake:
            request = self._waiting.popleft()
            self._handshake = request.message.method == "initialize"
            self._running.append(request)
            threading.Thread(target=self._run, args=(request,), daemon=True).start()

    def _cancel(self, message: Message) -> bool:
        wanted = protocol.build_id_key(message.cancels)
        with self._changed:
            request = next(
                (
                    pending_request
                    for pending_request in [*self._waiting, *self._running]
                    if wanted in pending_request.owed
                ),
                None,
            )
            if request is None:
                return self._modern
            request.drop()
            if request in self._waiting:
                self._waiting.remove(request)
                return True
            return bool(request.message.version)

    def _run(self, request: PendingRequest) -> None:
        try:
            if request.dropped:
                return
            endpoint, exchange = self._connected_somehow(request)
            try:
                self._exchange(request, endpoint, exchange)
            except ServerUnavailable as lost:
                message, cause = request.message, lost.__cause__
                # An error response or a timeout does not count as a lost connection.
                is_lost = isinstance(cause, OSError | http.client.HTTPException)
                is_lost = is_lost and not isinstance(cause, TimeoutError)
                if request.dropped or not (message.reads or message.has_key) or not is_lost:
                    raise
                try:
                    endpoint, exchange = self._connected_somehow(request)
                except ServerUnavailable as gone:
                    if message.reads:
                        raise
                    raise lost from gone  # the first attempt may have stored the change
                self._exchange(request, endpoint, exchange)
        except PostroomError as error:
            self._fail(request, error)
        except Exception as error:  # the client gets an error, and the proxy continues
            self._log(traceback.format_exc())
            self._fail(
                request, PostroomError(f"the connection between the client and the server failed: {error!r}")
            )
        finally:
            with self._changed:
                self._running.remove(request)
                if request.message.method == "initialize":
                    self._handshake = False
                self._start_what_fits()
                self._changed.notify_all()

    def _connect(self, request: PendingRequest) -> tuple[Endpoint, Exchange]:
        endpoint = self._locate()
        request.exchange = exchange = Exchange(endpoint, timeout=SILENCE)
        exchange.connect()
        return endpoint, exchange

    def _connected_somehow(self, request: PendingRequest) -> tuple[Endpoint, Exchange]:
        try:
            return self._connect(request)
        except ServerUnavailable:
            if self._start is None or request.dropped:
                raise
            # Start a server, unless one answers, and connect to it. Only one thread at a time may do this.
            with self._starting:
                if self._start is not None and time.monotonic() >= self._start_refused_until:
                    self._start_failure = self._start()
                try:
                    result = self._connect(request)
                except ServerUnavailable as error:
                    if time.monotonic() >= self._start_refused_until:
                        self._start_refused_until = time.monotonic() + self._pause.total_seconds()
                        self._pause = min(self._pause * 2, MAX_PAUSE)
                    if not self._start_failure:
                        raise
                    text = f"{error.message}; the server did not start: {self._start_failure}"
                    raise ServerUnavailable(text, value=error.value) from error
                self._pause = FIRST_PAUSE
                return result

    def _exchange(self, request: PendingRequest, endpoint: Endpoint, exchange: Exchange) -> None:
        try:
            message = request.message
            headers = {
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                **message.headers,
            }
            if self._version and not message.version and message.method != "initialize":
                headers["MCP-Protocol-Version"] = self._version
            if self._client:
                headers[CLIENT_HEADER] = self._client
            if self._marks and not self._modern:
                headers["Mcp-Session-Id"] = "-".join([*self._marks, "pipe"])
            call = Call(path=endpoint.mcp_path, body=request.message.body, headers=headers)
            response = exchange.send(call)
            if response.status == 200 and content_type(response) == "text/event-stream":
                request.streams = True
                try:
                    for data in events(response.read1):
                        self._deliver(request, json.loads(data), data.encode())
                        if request.message.awaits and not request.owed:
                            return
                except ValueError as error:
                    raise PostroomError("the server sent an event that is not JSON") from error
                except (OSError, http.client.HTTPException) as error:
                    raise unavailable(endpoint, error) from error
                if request.owed:
                    ended = ConnectionError("the server ended the stream before it answered")
                    raise unavailable(endpoint, ended) from ended
            else:
                kind = content_type(response)
                reply = Reply(status=response.status, content_type=kind, body=whole_body(endpoint, response))
                document = reply.json()
                if request.owed and protocol.answered(document):
                    self._deliver(request, document, reply.body)
                elif not 200 <= reply.status < 300:
                    raise refused(reply)
                if request.owed:
                    raise PostroomError(
                        f"the server accepted the request with status {reply.status} but did not answer it"
                    )
        finally:
            exchange.close()

    def _deliver(self, request: PendingRequest, document: object, raw: bytes) -> None:
        if (
            (isinstance(document, dict) and document.get("id") is None and "error" in document)
            and len(request.message.awaits) == 1
            and isinstance(document, dict)
        ):
            document = {**document, "id": request.message.awaits[0]}
            raw = protocol.compact(document)
        if request.message.method == "initialize":
            result = document.get("result") if isinstance(document, dict) else None
            version = result.get("protocolVersion") if isinstance(result, dict) else None
            if isinstance(version, str):
                self._version, self._modern = protocol.header_value(version), False
        request.owed -= {protocol.build_id_key(named) for named in protocol.answered(document)}
        if not request.dropped:
            self._write(protocol.compact(document) if b"\n" in raw or b"\r" in raw else raw)

    def _fail(self, request: PendingRequest, error: PostroomError) -> None:
        if request.dropped:
            return
        if not request.owed:
            self._log(
                f"{request.message.method or 'the message'} was not delivered to the server: {error.message}"
            )
            return
        owed = tuple(
            named for named in request.message.awaits if protocol.build_id_key(named) in request.owed
        )
        text = f"{error.message}; {error.remedy}" if error.remedy else error.message
        left = Message(body=b"", awaits=owed, batch=request.message.batch)
        self._write(protocol.failures(left, protocol.SERVER_FAILURE, text, error.as_dict()))


class LineWriter:
    """Writes complete lines to a file descriptor; threads take turns."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self.is_open = True

    def write(self, line: bytes) -> None:
        """Write a complete line; do nothing after the reader has closed the descriptor."""
        left = memoryview(line + b"\n")
        with self._lock:
            try:
                while left and self.is_open:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                self.is_open = False  # the client has gone: the next line or the end of input ends the proxy


def carry(find: Callable[[], Endpoint], *, start: Callable[[], str] | None = None) -> int:
    """Serve MCP on stdin and stdout until stdin is closed, and return the exit code.

    `start` starts a server if no server answers.
    """
    # Reserve stdout for the protocol, and redirect all other output of this process to stderr.
    sys.stdout.flush()
    kept_count = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    writer = LineWriter(kept_count)
    proxy = Proxy(find, writer.write, _log, start=start)
    try:
        if start is not None:
            start()
        while writer.is_open and (line := sys.stdin.buffer.readline()):
            proxy.take(line)
        proxy.finish()
    except KeyboardInterrupt:
        return 130
    return 0


def serve_stdio(*, start: bool, data_dir: Path | None = None, tools: str | None = None) -> int:
    """Serve MCP over stdio until stdin is closed, and return the exit code.

    If `start` is True, a server is started whenever no server answers. `tools` is `core` or `full`, and
    selects the tools that the server lists.
    """
    environment = places.environment()
    folder = None if data_dir is None else places.absolute(str(data_dir), environment)

    def start_server() -> str:
        from postroom.cli.start import ensure_server

        return ensure_server(environment, _log, data_dir=folder)

    def find() -> Endpoint:
        endpoint = locate(environment, data_dir=folder)
        return endpoint if tools is None else replace(endpoint, mcp_path=f"{endpoint.mcp_path}/{tools}")

    return carry(find, start=start_server if start else None)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
