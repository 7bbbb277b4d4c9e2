"""Explains why a file cannot be accessed: which file or folder is the obstacle, its owner, and the remedy."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The file or folder that prevents access to a file."""

    path: Path
    owner: int
    reason: str
    remedy: str

    def why(self, wanted: Path) -> str:
        """Return the reason for the failed access as a phrase that follows the name of the file `wanted`."""
        return f"{'it' if self.path == wanted else self.path} {self.reason}"


def denied(path: Path, wanted: int) -> Denied | None:
    """Return the file or folder that prevents access to `path`, or None if none is found; the call blocks.

    `wanted` is `os.R_OK`, `os.W_OK` or both, and `os.X_OK` if the path must be a folder. For a missing file,
    the parent folder must permit the creation of the file.
    """
    above: Path | None = None
    for item in (*reversed(path.parents), path):
        try:
            value = item.stat()
        except FileNotFoundError:
            return None if above is None else _denied_because(above, above.stat(), wanted, is_way=False)
        except OSError:
            return None
        if denied := _denied_because(item, value, wanted, is_way=item != path):
            return denied
        above = item
    return None


def _denied_because(path: Path, found: os.stat_result, wanted: int, *, is_way: bool) -> Denied | None:
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and (is_way or wanted & os.X_OK):
        return Denied(
            path=path,
            owner=found.st_uid,
            reason="is not a folder",
            remedy="use the path of a folder, or of one that does not exist yet",
        )
    need = os.X_OK if is_way else wanted | (os.X_OK if is_folder else 0)
    if os.access(path, need, effective_ids=os.access in os.supports_effective_ids):
        return None
    if not is_way and os.statvfs(path).f_flag & os.ST_RDONLY:
        return None  # a read-only file system
    own, owner = os.geteuid(), found.st_uid
    if owner == own:
        mode = stat.S_IMODE(found.st_mode)
        return Denied(
            path=path,
            owner=owner,
            reason=f"has mode {mode:04o}, which denies access to its own user",
            remedy=f"`chmod u+rw{'x' if is_folder else ''} {path}`",
        )
    giving = f"`chown {'-R ' if is_folder else ''}{own} {path}` as root"
    # A parent folder should keep its owner, so its remedy only gives access.
    letting = f"let user {owner} give others access: `chmod o+x {path}`"
    return Denied(
        path=path,
        owner=owner,
        reason=f"belongs to user {owner}, but this is user {own}",
        remedy=f"{letting if is_way else giving}, or run this command as user {owner}",
    )
