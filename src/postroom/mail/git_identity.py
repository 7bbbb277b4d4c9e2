"""The identity of a repository, which does not depend on its folder: its remote and its first commit.

The worktrees, clones and subfolders of a repository, and symbolic links to it, have the same identity. An
unknown part of an identity is empty: a shallow clone lacks the first commit, and a copy may have no remote.
The identity of a folder without a repository is its inode and birth time, which a rename does not change.
"""

import ctypes
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Final, TypeVar

from postroom.contracts.mail import Project
from postroom.log import get_logger

_LOG = get_logger(__name__)

QUICK_SECONDS: Final = 3
"""The time limit in seconds for Git to read a few files. Some files may block forever."""
WALK_SECONDS: Final = 15
"""The time limit in seconds for Git to find the first of a million commits, which takes about 8 s."""
MAX_REMOTE_LENGTH: Final = 500
"""Maximum number of characters of a stored remote. A longer remote address is identified by its hash."""
_LOCAL_ORIGINS: Final = 3
"""Maximum number of local origins that are followed to find the remote of a clone."""
_FOLDER: Final = "#folder:"
"""The prefix of the identity of a folder that is not in a repository."""
_STATX: Final = (32, 80, 256)
"""The offsets in bytes of inode and birth time in the result of Linux's `statx`, and its size."""
_BIRTH: Final = 0x800
"""The bit that asks `statx` for the birth time, and shows in the result that it is available."""
_HERE: Final = -100
_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SCP: Final = re.compile(r"^(?:[^@/:]+@)?([^/:]{2,}):(?!//)(.*)$")
K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryFolder:
    """The location and Git identity of a folder on this machine."""

    top: str
    """The root of the folder's working tree, in the spelling of the folder, or else the folder."""
    home: str = ""
    """The main working tree, or "" if the folder is not in a linked working tree.

    A linked working tree may be removed before the main working tree.
    """
    others: tuple[str, ...] = ()
    """The other folders with the same contents: the targets of symbolic links, and the main working tree."""
    identity: str = ""
    """`<remote>#<first commit>`, where unknown parts are empty.

    If there is no repository, the identity is `#folder:<inode>-<birth time>`, or "" if the file system stores
    no birth time.
    """

    @property
    def lasting(self) -> str:
        """The folder of the main working tree, which outlasts linked worktrees."""
        return self.home or self.top


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """A folder with its Git identity, and the Git identities of known projects."""

    folder: RepositoryFolder
    identities: Mapping[int, str]
    """The identities of the projects whose identity is not stored yet, keyed by project."""


def recognise(path: str, unread: Sequence[Project]) -> Recognition:
    """Read the Git identity of a folder, and the missing identities of known projects.

    Blocks.
    """
    folder = read_folder(path)
    identities = (
        ((project.id, read_folder(project.human_key).identity) for project in unread)
        if is_of_git(folder.identity)
        else ()
    )
    return Recognition(
        folder=folder, identities={number: identity for number, identity in identities if identity}
    )


def read_folder(path: str) -> RepositoryFolder:
    """Read the location and the Git identity of a folder with Git.

    Blocks.
    """
    plain = RepositoryFolder(top=path)
    if not S_ISDIR(_mode(path)):
        return plain
    real = os.path.realpath(path)
    git = shutil.which("git")
    is_plain = not _has_repository(Path(real))
    if git is None or is_plain:
        return RepositoryFolder(
            top=path,
            others=() if real == path else (real,),
            identity=_folder_identity(real) if is_plain else "",
        )
    arguments = (
        "rev-parse",
        "--path-format=absolute",
        "--is-bare-repository",
        "--git-common-dir",
        "--show-prefix",
    )
    is_bare, common, prefix = [*ask_git(git, path, *arguments).split("\n"), "", "", ""][:3]
    if not common:
        return plain
    inner = prefix.rstrip("/")
    top, real_top = _without(path, inner), _without(real, inner)
    main = str(Path(common).parent) if is_bare == "false" and Path(common).name == ".git" else real_top
    others = tuple(dict.fromkeys(path for path in (real_top, main) if path != top))
    has_home = main != real_top and ask_git(git, real_top, "config", "--get", "core.bare") != "true"
    return RepositoryFolder(
        top=top, home=main if has_home else "", others=others, identity=_identity(git, real_top)
    )


def is_folder(path: str) -> bool:
    """Return whether a path is a folder.

    Blocks.
    """
    return S_ISDIR(_mode(path))


def same_repository(identity: str, known: Iterable[tuple[K, str]]) -> K | None:
    """Return the key of the known identity that belongs to the repository of `identity`, or None.

    Forks of a repository count as separate repositories.
    """
    listed = list(known)
    if equal := next((key for key, other in listed if other == identity), None):
        return equal
    alike = [(key, candidate) for key, candidate in listed if _agree(identity, candidate)]
    remote = split_identity(identity)[0]
    of_remote = [key for key, candidate in alike if remote and split_identity(candidate)[0] == remote]
    keys = of_remote or [key for key, _ in alike]
    return keys[0] if len(keys) == 1 else None


def is_of_git(identity: str) -> bool:
    """Return whether an identity belongs to a Git repository."""
    return bool(identity) and not identity.startswith(_FOLDER)


def split_identity(identity: str) -> tuple[str, str]:
    """Return the remote and the first commit in a repository identity."""
    remote, _, root = identity.rpartition("#")
    return remote, root


def complete_identity(known: str, read: str) -> str:
    """Return a known repository identity, with missing parts filled in from a newly read identity."""
    if read and not is_of_git(known):
        return read
    pairs = zip(split_identity(known), split_identity(read), strict=True)
    return "#".join(a or b for a, b in pairs) if _agree(known, read) else known


def _agree(one: str, other: str) -> bool:
    pairs = list(zip(split_identity(one), split_identity(other), strict=True))
    return any(a and a == b for a, b in pairs) and all(a == b or not a or not b for a, b in pairs)


def _has_repository(folder: Path) -> bool:
    is_bare = bool(_mode(folder / "HEAD")) and S_ISDIR(_mode(folder / "objects"))
    return is_bare or any(_mode(parent / ".git") for parent in (folder, *folder.parents))


def _mode(path: str | Path) -> int:
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):
        return 0


def _folder_identity(folder: str) -> str:
    """Return the inode and the birth time of a folder, which do not change when the folder is renamed."""
    try:
        status = Path(folder).stat()
    except OSError:
        return ""
    inode, born = status.st_ino, int(getattr(status, "st_birthtime", 0) * 1e9)
    statx = getattr(ctypes.CDLL(None), "statx", None) if sys.platform == "linux" else None
    if statx is not None:
        at_inode, at_birth, size = _STATX
        buffer = ctypes.create_string_buffer(size)
        if statx(_HERE, os.fsencode(folder), 0, _BIRTH, buffer) == 0 and buffer.raw[1] << 8 & _BIRTH:
            seconds, nanoseconds = struct.unpack_from("=qI", buffer, at_birth)
            inode, born = struct.unpack_from("=Q", buffer, at_inode)[0], seconds * 10**9 + nanoseconds
    return f"{_FOLDER}{inode}-{born}" if born else ""


def _without(path: str, inner: str) -> str:
    native = inner.replace("/", os.sep)
    for form in (path, os.path.realpath(path)):
        if not native or form.endswith(f"{os.sep}{native}"):
            return form[: len(form) - len(native)].rstrip(os.sep) if native else form
    return path


def _identity(git: str, folder: str, depth: int = 0) -> str:
    remote = ask_git(git, folder, "config", "--get", "remote.origin.url")
    if len(remote) > MAX_REMOTE_LENGTH:
        remote = hashlib.sha256(remote.encode(errors="surrogatepass")).hexdigest()
    elif remote and (origin := _local(remote, folder)):
        remote = origin
        if S_ISDIR(_mode(origin)) and depth < _LOCAL_ORIGINS:
            its = split_identity(_identity(git, origin, depth + 1))[0]
            is_bare = ask_git(git, origin, "rev-parse", "--is-bare-repository") == "true"
            remote = its or (origin if is_bare else "")
    elif remote:
        remote = plain_remote(remote)
    root = ""  # the oldest root commit of all branches; a shallow or empty history has none
    if ask_git(git, folder, "rev-parse", "--is-shallow-repository") != "true":
        branches = ("--branches", "--remotes=origin")
        head = ("HEAD",) if ask_git(git, folder, "rev-parse", "--verify", "--quiet", "HEAD") else ()
        words = ("rev-list", "--max-parents=0", *branches, *head)
        root = "".join(ask_git(git, folder, *words, timeout=WALK_SECONDS).split()[-1:])
    return f"{remote}#{root}" if remote or root else ""


def plain_remote(url: str) -> str:
    """Return the URL of a Git remote as `host/path`, without user and password."""
    rest = _SCHEME.sub("", url)
    if rest == url and (scp := _SCP.match(url)):
        rest = f"{scp[1]}/{scp[2].lstrip('/')}"
    host, slash, path = rest.partition("/")
    host = re.sub(r":\d*$", "", host.rpartition("@")[2]).casefold()
    return f"{host}{slash}{path.rstrip('/').removesuffix('.git')}"


def _local(remote: str, folder: str) -> str:
    if remote.startswith("file://"):
        return os.path.realpath(remote.removeprefix("file://"))
    if _SCHEME.match(remote) or (_SCP.match(remote) and not _mode(Path(folder, remote))):
        return ""
    return os.path.realpath(Path(folder, remote))


def environment_of(git: str) -> dict[str, str]:
    """Return the environment for Git commands that read other users' folders and never prompt for input."""
    return {
        "PATH": f"{Path(git).parent}{os.pathsep}{os.defpath}",
        "HOME": str(Path.home()),  # its settings list the folders of other users that this user trusts
        "LC_ALL": "C",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }


def ask_git(git: str, path: str, *words: str, timeout: int = QUICK_SECONDS) -> str:
    """Run a Git command that cannot start other programs or fetch data, and return the command's output."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed words; the path is an argument, not a command
            [git, "-c", "protocol.allow=never", "-c", "core.fsmonitor=false", "-C", path, *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=environment_of(git),
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        _LOG.warning("project.git_not_asked", path=path, words=words[0], error=type(error).__name__)
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
