"""The results of checks with their remedies, and the checks of the machine."""

import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from postroom.contracts.errors import PostroomError
from postroom.http_api.readiness import CheckState
from postroom.services.administration import CheckView

_SHOWN_MESSAGES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of checking one part of the installation.

    `state` is `unknown` if the part could not be checked.
    """

    part: str
    """The name of the part, from a fixed list, so that it cannot contain the name of a person or project."""
    state: CheckState
    detail: str
    remedy: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Numbers, codes and words from fixed lists, without names, because other people may see the facts."""
    about: str = ""
    """The checked project or agent, if there are several. Support bundles never contain this name."""

    def as_dict(self) -> CheckView:
        """Return the name, state, detail and remedy of the result as JSON data."""
        name = f"{self.part} {self.about}" if self.about else self.part
        return {"name": name, "state": self.state, "detail": self.detail, "remedy": self.remedy}


def backed_up_elsewhere() -> CheckResult:
    """Return the check result for a PostgreSQL database, which postroom does not back up."""
    detail = "postroom does not back up PostgreSQL"
    return CheckResult(
        part="backups", state="unknown", detail=detail, remedy="check that a timer of yours runs pg_dump"
    )


def broken(part: str, error: PostroomError, *, about: str = "") -> CheckResult:
    """Return a failed check result for an error that a check raised.

    `part` is the name of the checked part.
    """
    return CheckResult(
        part=part,
        state="failed",
        detail=error.message,
        remedy=error.remedy,
        about=about,
        facts={"code": error.code},
    )


def told_of_messages(damaged: Sequence[int]) -> CheckResult:
    """Return the check result for messages whose text no longer matches the stored checksum."""
    if not damaged:
        return CheckResult(part="messages", state="ok", detail="no text changed after it was stored")
    shown = ", ".join(map(str, damaged[:_SHOWN_MESSAGES]))
    return CheckResult(
        part="messages",
        state="failed",
        detail=f"the texts of {len(damaged)} messages changed on the disk: {shown}",
        remedy="read them in the archive, or restore a backup that is older than the damage",
        facts={"messages": len(damaged)},
    )


def span(milliseconds: int) -> str:
    """Return a duration as text, such as "3 hours"."""
    seconds = max(milliseconds, 0) // 1000
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"


MIN_FREE: Final = 256 * 1024 * 1024
"""The minimum free space in bytes. With less space, the next large message or backup may not fit."""
MAX_USED: Final = 0.8
"""The fraction of the permitted file descriptors above which the check fails."""
_FOLDERS: Final = ("/proc/self/fd", "/dev/fd")


def open_descriptors() -> int | None:
    """Return the number of open files and sockets of this process, or None if the number is unknown.

    Blocks.
    """
    for folder in _FOLDERS:
        try:
            return sum(1 for _ in Path(folder).iterdir()) - 1  # the check itself has opened one
        except OSError:
            continue
    return None


def most_descriptors() -> int | None:
    """Return the maximum number of file descriptors of this process, or None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def free_bytes(folder: Path) -> int:
    """Return the number of free bytes on a folder's disk. Blocks.

    Raises:
        OSError: The folder is unreadable.
    """
    return shutil.disk_usage(folder).free


def told_of_disk(database: Path, *, free_of: Callable[[Path], int] = free_bytes) -> CheckResult:
    """Check the free space on the disk that contains a database file or a folder. Blocks."""
    try:
        there = next(path for path in (database, *database.parents) if path.exists())
        is_folder = there.is_dir()  # another check reports a missing database
        size = 0 if is_folder else there.stat().st_size
        free = free_of(there if is_folder else there.parent)
    except OSError as error:
        detail = f"the free space cannot be read: {error.strerror}"
        return CheckResult(
            part="disk", state="unknown", detail=detail, remedy="check the free space of the disk yourself"
        )
    detail = f"{free} bytes are free" + ("" if is_folder else f", the database has {size}")
    facts = {"free_bytes": free, "database_bytes": size}
    if free < (least := max(MIN_FREE, 2 * size)):
        detail += f"; at least {least} are needed" + (", twice the database" if least > MIN_FREE else "")
        remedy = "free space, or move the data folder: on a full disk, messages are rejected"
        return CheckResult(part="disk", state="failed", detail=detail, remedy=remedy, facts=facts)
    return CheckResult(part="disk", state="ok", detail=detail, facts=facts)


def told_of_descriptors(used: int | None, most: int | None) -> CheckResult:
    """Check the number of open file descriptors against the limit."""
    if used is None:
        detail = "this system does not report how many files the server has open"
        return CheckResult(
            part="descriptors", state="unknown", detail=detail, remedy="count the open files with lsof"
        )
    facts = {"open": used, "most": most}
    if most is not None and used > MAX_USED * most:
        detail = f"{used} of at most {most} files are open"
        remedy = (
            "raise the limit (`ulimit -n`, or LimitNOFILE of systemd), or find the program that "
            "opens so many files"
        )
        return CheckResult(part="descriptors", state="failed", detail=detail, remedy=remedy, facts=facts)
    detail = f"{used} of at most {most or 'any number'} files are open"
    return CheckResult(part="descriptors", state="ok", detail=detail, facts=facts)
