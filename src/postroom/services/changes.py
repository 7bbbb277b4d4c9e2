"""Asks Git for the changes in a run's working folder since the run started.

Git only reads the repository. Settings of the repository that could start programs (filters, hooks, external
diffs, a file system monitor) are turned off, because agents can change them.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from signal import SIGKILL
from threading import Timer
from typing import Final

from postroom.contracts.clock import iso
from postroom.log import get_logger
from postroom.mail.git_identity import environment_of

_LOG = get_logger(__name__)
SECONDS: Final = 3
"""Time limit in seconds for each call of Git."""
MAX_DIFF_BYTES: Final = 256 * 1024
"""Maximum number of bytes of a diff that are read."""
FILES: Final = 40
"""Maximum number of files whose diff is returned, and of new files that are listed."""
_DIFF: Final = (
    *("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--ignore-submodules=all", "--src-prefix=a/", "--dst-prefix=b/"),
)
_FILTERS: Final = r"^filter\..*\.(clean|process|required)$"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file of a repository that has changed since the start of a run."""

    path: str
    diff: str
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The differences between a folder and the commit that was checked out at an earlier time."""

    since: str
    """The short id of the commit."""
    files: Sequence[ChangedFile] = ()
    new_files: Sequence[str] = ()
    """Files that the repository neither tracks nor ignores."""
    is_cut: bool = False
    """Whether some differences are missing."""


def changes_since(folder: str, at: int) -> Changes | None:
    """Return the differences between a folder and the commit that was checked out at the time `at`.

    Return None if the folder does not exist or has no commit. Blocks.
    """
    git = shutil.which("git")
    if git is None or not os.path.isdir(folder):  # noqa: PTH112 - a path that a person typed
        return None
    # Turn off programs that the repository's configuration would make Git run on file contents.
    named, _ = _ask(git, folder, {}, "config", "--name-only", "-z", "--get-regexp", _FILTERS)
    off = {part: "false" if part.endswith("required") else "" for part in named.split("\0") if part}
    short = ("rev-parse", "--verify", "--quiet", "--short")
    for moment in (f"HEAD@{{{iso(at)}}}", "HEAD"):
        since, _ = _ask(git, folder, off, *short, f"{moment}^{{commit}}")
        if since := since.strip():
            break
    else:
        return None
    text, is_cut = _ask(git, folder, off, *_DIFF, since, "--", ".")
    others, _ = _ask(git, folder, off, "ls-files", "--others", "--exclude-standard", "-z")
    parts = ["diff --git " + part for part in ("\n" + text).split("\ndiff --git ")[1:]]
    files = list[ChangedFile]()
    for part in parts[:FILES]:
        head, _, body = part.partition("\n@@")
        marks = ("--- a/", "+++ b/")
        names = [line[6:].rstrip("\t") for line in head.splitlines() if line.startswith(marks)]
        lines = f"@@{body}".splitlines() if body else head.splitlines()[1:]
        files.append(
            ChangedFile(
                path=next(reversed(names), head.splitlines()[0].rpartition(" b/")[2]),
                diff="\n".join(lines),
                added=sum(line.startswith("+") for line in lines) if body else 0,
                removed=sum(line.startswith("-") for line in lines) if body else 0,
            )
        )
    new_files = [part for part in others.split("\0") if part]
    return Changes(
        since=since,
        files=files,
        new_files=new_files[:FILES],
        is_cut=is_cut or len(parts) > FILES or len(new_files) > FILES,
    )


def _ask(git: str, folder: str, off: dict[str, str], *words: str) -> tuple[str, bool]:
    settings = {"protocol.allow": "never", "core.fsmonitor": "false", "core.hooksPath": os.devnull, **off}
    environment = {**environment_of(git), "GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    try:
        with subprocess.Popen(  # noqa: S603 - fixed command; the folder is an argument
            [git, "-C", folder, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        ) as process:
            end = Timer(SECONDS, process.kill)
            end.start()
            data = b"" if process.stdout is None else process.stdout.read(MAX_DIFF_BYTES + 1)
            end.cancel()
            is_cut = len(data) > MAX_DIFF_BYTES or process.poll() == -SIGKILL
            process.kill()
    except (OSError, ValueError) as error:
        _LOG.warning("run.git_not_asked", path=folder, words=words[0], error=type(error).__name__)
        return "", False
    return data[:MAX_DIFF_BYTES].decode("utf-8", "replace"), is_cut
