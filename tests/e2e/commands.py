"""The command line, run in the process of the tests: a new process takes a second until it reaches its command."""

import io
import os
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from postroom.cli.main import main


def run_here(*words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, with this environment and no other."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with patch.dict(os.environ, environment, clear=True), redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, code, *said)
