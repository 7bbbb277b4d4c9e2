"""By what a folder's repository is known wherever it lies: its remote and its first commit."""

import shutil
import subprocess
from pathlib import Path

TIMEOUT_SECONDS = 5


def read_git_identity(path: str) -> str:
    """Return `<remote>#<root commit>` of the repository at `path`, or an empty string when there is none."""
    git = shutil.which("git")
    if git is None or not Path(path).is_dir():
        return ""
    remote = _ask(git, path, "config", "--get", "remote.origin.url")
    roots = _ask(git, path, "rev-list", "--max-parents=0", "HEAD").split()
    return f"{remote}#{roots[-1]}" if roots else ""


def _ask(git: str, path: str, *words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words; the path is an argument, not a command
            [git, "--no-optional-locks", "-C", path, *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
