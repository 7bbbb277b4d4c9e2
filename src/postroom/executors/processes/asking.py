"""Asks a program one thing, as its version or whether it is logged in. Everything here blocks."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

PATIENCE: Final = timedelta(seconds=20)
"""What a program has to answer; one that takes longer is ended."""
_VERSION: Final = re.compile(r"\d+\.\d+(?:\.\d+)*[^\s,;)]*")


def asked(environment: Mapping[str, str], *words: str, cwd: Path | None = None) -> tuple[int, str]:
    """Return a program's exit code and what it said; 127 when it is not there, 126 when it does not answer.

    Without `cwd` it runs in a folder that is thrown away.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(  # noqa: S603 - a client's own program, found on the PATH of its user
                words,
                cwd=cwd or Path(folder),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE.total_seconds(),
                check=False,
            )
    except FileNotFoundError:
        return 127, f"{words[0]} was not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        return 126, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def version_in(said: str) -> str:
    """Return the version that a program tells; empty when it tells none."""
    found = _VERSION.search(said)
    return found[0].rstrip(".") if found else ""
