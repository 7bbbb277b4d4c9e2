"""Runs what other queues do on the same machine, in an environment of their own."""

import json
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / ".venv-peers" / "bin" / "python"
MISSING = "not installed: make peers"


def rate_of(program: str, *arguments: object) -> dict[str, float] | None:
    """Return what a peer's program measured; None when the peers are not installed."""
    if not PYTHON.exists():
        return None
    words = [str(PYTHON), str(HERE / program), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
