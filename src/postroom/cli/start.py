"""Starts the shared server for a client that found no server, so that no person has to start it.

Several clients may start a server at the same time. A file lock allows only one of these servers to continue,
and all clients use it.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from postroom.app import places
from postroom.cli.client import Server, locate
from postroom.contracts.errors import PostroomError, ServerUnavailable

START_TIMEOUT: Final = timedelta(seconds=30)
"""The time limit for a start. After a server was killed, a start takes longer than after a stop."""
LOSER_TIMEOUT: Final = timedelta(seconds=3)
"""How long to wait for another server, which may have been faster, after a started server has exited."""
_PROBE_TIMEOUT: Final = timedelta(seconds=2)
_SHOWN_BYTES: Final = 1_000
"""The number of bytes at the end of the log that are shown after a failed start."""
_PAUSE: Final = timedelta(milliseconds=50)

Log = Callable[[str], None]


def ensure_server(environment: Mapping[str, str], log: Log, *, data_dir: Path | None = None) -> str:
    """Start a server in the background if no server answers.

    Return "" if a server answers, or the reason why no server answers. If `POSTROOM_URL` is set, no server is
    started. The started server continues after the end of this process.
    """
    if _answers(environment, data_dir) or environment.get("POSTROOM_URL"):
        return ""
    folder = data_dir or places.data_dir(environment)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log_file = os.open(folder / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(log_file, "ab") as output:  # noqa: PTH123 - the descriptor has the file's mode
            begin = output.seek(0, os.SEEK_END)
            # With -P and a neutral folder, the server does not import files of a project as its modules, and
            # does not keep the folder of a project in use.
            command = [sys.executable, "-P", "-m", "postroom", "up"]
            given_fields = {
                name: value for name, value in environment.items() if name not in places.CLIENT_NAMES
            }
            given_fields[places.DATA_DIR_NAME] = str(folder)
            if environment.get(places.CONFIG_NAME):
                given_fields[places.CONFIG_NAME] = str(places.config_file(environment))
            server = subprocess.Popen(  # noqa: S603 - this very interpreter, with fixed words
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=given_fields,
                start_new_session=True,
            )
    except OSError as error:
        log(f"the server did not start: {error}")
        return str(error)
    if _wait(lambda: _answers(environment, data_dir), server):
        return ""
    log(f"the server did not start; see its log: {folder / 'server.log'}")
    code = server.poll()
    if code is None:
        return f"no answer within {START_TIMEOUT.seconds} s"
    text = (folder / "server.log").read_bytes()[begin:][-_SHOWN_BYTES:].decode(errors="replace")
    return f"exit code {code}: {'; '.join(text.splitlines()[-3:])}"


def _answers(environment: Mapping[str, str], data_dir: Path | None) -> bool:
    try:
        return Server(locate(environment, data_dir=data_dir), timeout=_PROBE_TIMEOUT).is_ready()
    except ServerUnavailable:
        return False
    except PostroomError:
        return True  # a server exists but fails, or the configuration is wrong: another server would not help


def _wait(answers: Callable[[], bool], server: "subprocess.Popen[bytes]") -> bool:
    end = time.monotonic() + START_TIMEOUT.total_seconds()
    pause = threading.Event()
    ended = False
    while time.monotonic() < end:
        if answers():
            return True
        if not ended and server.poll() is not None:
            ended = True
            end = min(end, time.monotonic() + LOSER_TIMEOUT.total_seconds())
        pause.wait(_PAUSE.total_seconds())
    return False
