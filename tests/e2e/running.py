"""A real `postroom up` in a separate process, and one raw HTTP connection to it."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from e2e.forked import ForkedProcess
from machine import PATIENCE, Bound

T = TypeVar("T")
START_PATIENCE = 50.0
"""Seconds for which a server that starts may do nothing."""
MIN_WORK = 0.1
"""Seconds of the processor that count as doing something; a server that is not ready spends less by waiting."""
STOP_PATIENCE = 50.0
_OLDER_NAMES = (
    "DATABASE_URL",
    "STORAGE_ROOT",
    "HTTP_HOST",
    "HTTP_PORT",
    "HTTP_PATH",
    "APP_ENVIRONMENT",
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "INLINE_IMAGE_MAX_BYTES",
)


class RunningServer:
    """A server process over a data folder; it may be killed and started again."""

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        most_files: int | None = None,
        program: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`program` is what a new Python runs as `postroom`; without an environment it has a plain one."""
        self.data_dir = data_dir
        self._environment = environment
        self._program = program
        self._most_files = most_files
        self._flags = flags
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._log = data_dir.with_name(f"{data_dir.name}.log")
        self.url = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, port: int = 0) -> Self:
        """Start the process, on a free port or this one, and wait, within a bound, until it is ready."""
        self.note.unlink(missing_ok=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        words = ["up", "--port", str(port), "--data-dir", str(self.data_dir), *self._flags]
        self._process = self._begun(words, self._environment or plain_environment(self.data_dir.parent))
        if self._most_files is not None:
            limits = (self._most_files, self._most_files)
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, limits)
        self._await_ready()
        return self

    def _begun(
        self, words: Sequence[str], environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes] | ForkedProcess":
        if self._program is None:
            return ForkedProcess(words, self._log, environment)
        command = [sys.executable, *self._program, *words]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def _await_ready(self) -> None:
        """Wait as long as the process works: on a busy machine a start takes as long as it takes."""
        pause = threading.Event()
        process, worked, until = psutil.Process(self.pid), 0.0, time.monotonic() + START_PATIENCE
        while time.monotonic() < until:
            assert self.is_running, f"the server ended at once:\n{self.log()[-2000:]}"
            if self.note.exists():
                self.url = json.loads(self.note.read_text())["url"]
                with Line(self.address) as line:
                    if line.request("GET", "/readyz").status == 200:
                        return
            with contextlib.suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                if used.user + used.system >= worked + MIN_WORK:
                    worked, until = used.user + used.system, time.monotonic() + START_PATIENCE
            pause.wait(0.02)
        self.kill()
        raise AssertionError(
            f"the server was not ready and did nothing for {START_PATIENCE} s:\n{self.log()[-2000:]}"
        )

    def stop(self) -> int:
        """Ask the process to stop and return its exit code; kill it when it does not."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._process = None
        return code

    def kill(self) -> None:
        """End the process with no chance to tidy up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_PATIENCE)
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def note(self) -> Path:
        return self.data_dir / "server.json"

    @property
    def token(self) -> str:
        return (self.data_dir / "token").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        """The header that proves the operator."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    @property
    def database(self) -> Path:
        return self.data_dir / "postroom.db"

    def repository(self, slug: str) -> Path:
        """Return the folder of a project's archive."""
        return self.data_dir / "archive" / f"{slug}.git"

    def log(self) -> str:
        """Return everything that the server's processes wrote so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def descriptors(self) -> int:
        """Return how many files and sockets the process has open."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def line(self) -> "Line":
        """Return a connection that shows the operator's token with each request."""
        return Line(self.address, headers=self.headers)

    def await_archive(self, *, patience: float = 60.0) -> None:
        """Wait, within a bound, until the archive has no backlog."""
        with self.line() as line:
            waiting = lambda: line.request("GET", "/admin/status").json()["archive_backlog"]["waiting"]  # noqa: E731
            soon(lambda: not waiting(), "no row waits for the archive", patience=patience)


def soon(look: Callable[[], T], what: object = "there is something", *, patience: float = 60.0) -> T:
    """Poll, within a bound, and return the first result; `what` is awaited, or is called to tell what is there instead."""
    pause, bound = threading.Event(), Bound(patience)
    while not (found := look()):
        if bound.has_passed():
            told = what() if callable(what) else f"it did not come to it that {what}"
            raise AssertionError(f"after {patience} s of work: {told}")
        pause.wait(0.05)
    return found


def postroom(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command over a data folder to its end."""
    return subprocess.run(
        [sys.executable, "-m", "postroom", *words, "--data-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=START_PATIENCE,
        env=plain_environment(folder.parent),
        check=False,
    )


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the next lines that a program prints; what takes too long is ended."""
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    assert process.stdout is not None
    found = [process.stdout.readline().rstrip("\n") for _ in range(count)]
    timer.cancel()
    return found


def plain_environment(home: Path) -> dict[str, str]:
    """Return this environment without any setting of postroom."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("POSTROOM_") and name not in _OLDER_NAMES
    }
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}


@dataclass(frozen=True, slots=True)
class Answer:
    """The response: all of it, or the head of a stream of events."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def is_json(self) -> bool:
        return self.headers.get("content-type", "").startswith("application/json")

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.body)


class Cut(Exception):
    """The server ended the connection before an answer was whole."""


class Line:
    """One connection, kept alive and opened again when needed; it sends any bytes."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        headers: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._address = address
        self._headers = {"Host": f"{address[0]}:{address[1]}", **(headers or {})}
        self._patience = patience
        self._socket: socket.socket | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a well formed request and return its answer.

        Raises:
            Cut: the server ended the connection; the request may have been performed.
            TimeoutError: no answer came in time.
        """
        lengths = {} if body is None else {"Content-Length": str(len(body))}
        head = [f"{method} {target} HTTP/1.1"]
        head += [
            f"{name}: {value}" for name, value in {**self._headers, **lengths, **(headers or {})}.items()
        ]
        raw = "\r\n".join(head).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + (body or b"")
        return self.exchange(raw, method=method)

    def rpc(
        self, document: object, *, headers: Mapping[str, str] | None = None, path: str = "/mcp"
    ) -> Answer:
        """Post a JSON document to the MCP endpoint."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.request(
            "POST", path, body=body, headers={"Content-Type": "application/json", **(headers or {})}
        )

    def tool(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool as clients of 2025-06-18 do; return the plain answer, or raise with the refusal."""
        call = {"name": name, "arguments": arguments}
        answer = self.rpc({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        assert answer.status == 200, answer
        result = answer.json()["result"]
        found = result["structuredContent"]
        if result.get("isError"):
            raise Refused(found["error"])
        return found["result"] if set(found) == {"result"} else found

    def order(self, method: str, target: str, document: object) -> Answer:
        """Send a JSON document to an address of the operator."""
        body, kind = json.dumps(document).encode(), {"Content-Type": "application/json"}
        return self.request(method, target, body=body, headers=kind)

    def crew(self, folder: str, *names: str) -> str:
        """Make a project with these agents; return its slug."""
        slug: str = self.tool("ensure_project", human_key=folder)["slug"]
        for name in names:
            self.tool("register_agent", project_key=folder, program="p", model="m", name=name)
        return slug

    def exchange(self, raw: bytes, *, method: str = "GET", is_last: bool = False) -> Answer:
        """Send bytes and read one answer to them; after the last bytes, the sending side is closed."""
        until = time.monotonic() + self._patience
        try:
            self.send(raw, is_last=is_last)
            return self._read(method, until)
        except OSError as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise
            raise Cut(type(error).__name__) from error

    def send(self, raw: bytes, *, is_last: bool = False) -> None:
        """Send bytes and read nothing."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=self._patience)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._rest = b""
        # It may have answered before it had read everything, and that answer is still to be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(raw)
            if is_last:
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._rest = b""

    def _read(self, method: str, until: float) -> Answer:
        head, self._rest = self._until(b"\r\n\r\n", until)
        first, *rows = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rows)}
        status = int(first.split(" ")[1])
        if status == 100:
            return self._read(method, until)
        answer = Answer(status, headers, b"")
        if answer.is_stream:
            return answer
        body = b"" if method == "HEAD" or status in (204, 304) else self._body(headers, until)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(status, headers, body)

    def _body(self, headers: Mapping[str, str], until: float) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks(until)
        length = int(headers.get("content-length", "0"))
        while len(self._rest) < length:
            self._more(until)
        body, self._rest = self._rest[:length], self._rest[length:]
        return body

    def _chunks(self, until: float) -> bytes:
        parts = []
        while True:
            size, self._rest = self._until(b"\r\n", until)
            length = int(size, 16)
            while len(self._rest) < length + 2:
                self._more(until)
            parts.append(self._rest[:length])
            self._rest = self._rest[length + 2 :]
            if not length:
                return b"".join(parts)

    def events(self, count: int) -> list[Any]:
        """Return the next documents of a stream of events, after its head was read; signs of life are skipped."""
        found: list[Any] = []
        until, kind = time.monotonic() + self._patience, b""
        while len(found) < count:
            row, self._rest = self._until(b"\n", until)
            if row.startswith(b"event:"):
                kind = row[6:].strip()
            if row.startswith(b"data:") and (text := row[5:].strip()) and kind != b"beat":
                found.append(json.loads(text))
        return found

    def _until(self, mark: bytes, until: float) -> tuple[bytes, bytes]:
        while mark not in self._rest:
            self._more(until)
        head, _, rest = self._rest.partition(mark)
        return head, rest

    def _more(self, until: float) -> None:
        assert self._socket is not None
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer after {self._patience} s")
        self._socket.settimeout(left)
        found = self._socket.recv(65_536)
        if not found:
            self.close()
            raise Cut("the connection ended")
        self._rest += found


class Refused(Exception):
    """A tool refused the call; carries code, value and remedy."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.error = error
