"""Asks a program one question, such as its version or whether it is logged in. All functions block."""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

PATIENCE: Final = timedelta(seconds=20)
"""The time after which a program that does not answer is ended."""
_SHOWN: Final = 200
_VERSION: Final = re.compile(r"\d+\.\d+(?:\.\d+)*[^\s,;)]*")


def asked(
    environment: Mapping[str, str], *words: str, cwd: Path | None = None, silent: set[str] | None = None
) -> tuple[int, str]:
    """Run a program with a time limit, and return the exit code and the output.

    The exit code is 127 if the program is missing, and 126 if the program does not answer in time. A program
    that does not answer is added to the set `silent`; programs in the set are not started. The default of
    `cwd` is a temporary folder.
    """
    silent = set() if silent is None else silent
    if words[0] in silent:
        return 126, no_answer()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            subprocess.Popen(  # noqa: S603 - the client's program, found on the PATH of the user
                words,
                cwd=cwd or Path(folder),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            try:
                data, _ = process.communicate(timeout=PATIENCE.total_seconds())
            except BaseException:  # the program must not outlive the wait, however it ends
                end(process)
                raise
    except FileNotFoundError:
        return 127, f"{words[0]} was not found"
    except subprocess.TimeoutExpired:
        silent.add(words[0])
        return 126, no_answer()
    except OSError as error:
        return 126, str(error)
    return process.returncode, data.decode(errors="replace").strip()


def no_answer() -> str:
    """Return the error text for a program that did not answer in time."""
    return f"no answer within {PATIENCE.total_seconds():g} seconds"


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a program and all processes in the program's session."""
    with suppress(ProcessLookupError, PermissionError):  # no process is left; macOS reports a PermissionError
        os.killpg(process.pid, signal.SIGKILL)


def shown(code: int, said: str) -> str:
    """Return the start of a program's output and the exit code as text for an error message."""
    return f"{said[:_SHOWN]!r} ({code})"


def version_in(said: str) -> str:
    """Return the version in a program's output, or "" if the output contains no version."""
    if "\ufffd" in said or not all(value.isprintable() or value in "\r\n\t" for value in said):
        return ""
    match = _VERSION.search(said)
    return match[0].rstrip(".") if match else ""
