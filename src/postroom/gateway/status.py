"""The files of a gateway: its status file, its process file, and its locks on bot tokens.

All files are in one folder, which the caller passes. If the caller passes None, nothing is stored. Files are
written atomically, and only their owner can read them. The operating system releases the locks of a process
that has ended.
"""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from filelock import FileLock, Timeout

from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.log import get_logger

_LOG = get_logger(__name__)

PID_FILE = "gateway.pid"
STATUS_FILE = "gateway_state.json"
LOCKS = "gateway-locks"


def write_pid_file(folder: Path | None) -> None:
    """Write the process id of the gateway to the PID file."""
    if folder is not None:
        _write(folder / PID_FILE, {"pid": os.getpid(), "kind": "postroom-gateway"})


def remove_pid_file(folder: Path | None) -> None:
    """Remove the gateway's PID file, unless the file belongs to another process."""
    if folder is None:
        return
    try:
        document = json.loads((folder / PID_FILE).read_text())
    except (OSError, ValueError):
        return
    if isinstance(document, dict) and document.get("pid") == os.getpid():
        (folder / PID_FILE).unlink(missing_ok=True)


def write_runtime_status(
    folder: Path | None,
    *,
    gateway_state: str,
    exit_reason: str | None = None,
    platforms: Mapping[str, Mapping[str, Json]] | None = None,
    now: int = 0,
) -> None:
    """Write the state of the gateway and of each platform to the status file.

    `gateway_state` is starting, running, draining, degraded or stopped. A failed write is logged and raises
    no error.
    """
    if folder is None:
        return
    fields = {
        "pid": os.getpid(),
        "gateway_state": gateway_state,
        "exit_reason": exit_reason,
        "platforms": {name: dict(state) for name, state in (platforms or {}).items()},
        "updated_at": now,
    }
    try:
        _write(folder / STATUS_FILE, fields)
    except OSError as error:
        _LOG.warning("gateway.status_not_written", file=str(folder / STATUS_FILE), reason=error.strerror)


class ScopedLocks:
    """Locks that prevent several processes on a machine from using the same bot token.

    File names and error messages contain only a hash of a token.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: dict[tuple[str, str], FileLock] = {}

    def acquire(self, scope: str, identity: str, *, store_id: str = "", server: str = "") -> None:
        """Acquire a lock, unless this process already holds the lock.

        If `store_id` is given, all servers of this store may hold the lock at the same time.

        Raises:
            ConfigError: Another process holds the lock.
        """
        if self._folder is None or (scope, identity) in self._held:
            return
        folder = self._folder / LOCKS
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{scope}-{_hash(identity)}"
        ours = f"{name}.{store_id[:16]}." if store_id else f"{name}.lock"
        lock = _file_lock(folder / (f"{ours}{_hash(server)}.lock" if store_id else ours))
        try:
            lock.acquire()
            for other in sorted(folder.glob(f"{name}.*lock")):
                if not other.name.startswith(ours):
                    with _file_lock(other):  # no process holds this lock any longer
                        pass
        except Timeout as error:
            lock.release()
            raise ConfigError(
                f"another process receives messages with the same {scope} token",
                value=name,
                remedy="stop that process, or give this server another bot",
            ) from error
        self._held[scope, identity] = lock

    def release(self, scope: str, identity: str) -> None:
        """Release a lock if this process holds the lock."""
        lock = self._held.pop((scope, identity), None)
        if lock is not None:
            lock.release()

    def release_all(self) -> None:
        """Release all locks that this process holds."""
        for scope, identity in list(self._held):
            self.release(scope, identity)


def _file_lock(file: Path) -> FileLock:
    return FileLock(file, timeout=0, mode=0o600, thread_local=False)


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, told: Mapping[str, Json]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(told, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
