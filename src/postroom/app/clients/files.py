"""Reads client files and replaces them atomically, so that readers see the old or the new file.

Before a change, an error is raised if the links of a file lead to another folder, if it is not a regular text
file, or if it is read-only.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from postroom.contracts.errors import ClientFileRefused, VersionConflict

LARGEST: Final = 64 * 1024 * 1024
"""Maximum bytes of a file. A client's file with a long history has a few million bytes."""
_PRIVATE: Final = 0o600
_BACKUP: Final = ".postroom-backup-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file path with the content that was read from the file."""

    path: Path
    """The path with all links followed."""
    content: bytes | None
    """The content, or None if the file does not exist."""
    mode: int = _PRIVATE
    owner: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """The content as text, or "" if the file does not exist."""
        return (self.content or b"").decode("utf-8")


def real(path: Path) -> Path:
    """Return a path with all symbolic links resolved; a loop of links raises no error."""
    return Path(os.path.realpath(path))


def look(path: Path, base: Path) -> Found:
    """Read the file at `path`, which must be in the folder `base` after symbolic links are resolved.

    Raises:
        ClientFileRefused: The file is in another folder, is not a regular file of UTF-8 text, or is not
            writable.
    """
    try:
        place = real(path)
        if not place.is_relative_to(real(base)):
            raise refused(path, f"the file is a link to {place}, which is outside {base}")
        try:
            value = place.stat()
        except FileNotFoundError:
            return Found(path=place, content=None)
        if not stat.S_ISREG(value.st_mode):
            raise refused(path, "the path is not a regular file")
        if value.st_size > LARGEST:
            raise refused(path, f"the file has {value.st_size} bytes; the limit is {LARGEST}")
        if not value.st_mode & stat.S_IWUSR or not os.access(place, os.W_OK):
            raise refused(path, "the file is read-only")
        content = place.read_bytes()
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise refused(
                path, f"the file is not UTF-8 text: {error.reason} at byte {error.start}"
            ) from error
        return Found(
            path=place, content=content, mode=stat.S_IMODE(value.st_mode), owner=(value.st_uid, value.st_gid)
        )
    except OSError as error:
        raise refused(path, f"the file cannot be read: {error}") from error


def refused(path: Path, why: str, remedy: str = "") -> ClientFileRefused:
    """Return the error for a file that was left unchanged, with the reason `why`."""
    return ClientFileRefused(f"{path} is unchanged: {why}", value=str(path), remedy=remedy or None)


def choose_remedy(error: OSError, path: Path) -> str:
    """Return the remedy for an operating system error that occurred while a file was written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"free space on the disk of {path.parent}, and run the command again"
    return (
        f"check that the disk works and that this user may write in {path.parent}, and run the command again"
    )


def backup_place(found: Found, now: int) -> Path:
    """Return the path for a backup of a file: the file's path, followed by the current time."""
    moment = datetime.fromtimestamp(now / 1000, tz=UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return found.path.with_name(f"{found.path.name}{_BACKUP}{moment}")


def back_up(found: Found, target: Path) -> None:
    """Write a copy of a file that only the owner can read, and sync the copy to the disk.

    Raises:
        ClientFileRefused: The copy could not be written.
    """
    with _describe(found.path):
        _write_new(target, found.content or b"", mode=found.mode & _PRIVATE, owner=found.owner)


def missing_folders(found: Found) -> list[Path]:
    """Return the missing parent folders of a file, outermost first."""
    folder = found.path.parent
    return [path for path in reversed((folder, *folder.parents)) if not path.exists()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A temporary file with the new text of a configuration file."""

    found: Found
    path: Path
    made: list[Path]
    """The folders that were created for the draft."""

    def put(self) -> None:
        """Replace the file with the draft.

        Raises:
            VersionConflict: Another process has changed the file since it was read.
            ClientFileRefused: The file could not be replaced. It is unchanged.
        """
        with _describe(self.found.path):
            require_unchanged(self.found)
            self.path.replace(self.found.path)
            descriptor = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def drop(self) -> None:
        """Remove the draft and the folders that were created for the draft."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        remove_folders(self.made)


def write_draft(found: Found, text: str) -> Draft:
    """Write a text to a draft next to a file, and create missing folders.

    Only one process at a time may call this function, because older drafts of the file are removed.

    Raises:
        ClientFileRefused: The draft could not be written. No part of it remains.
    """
    draft = Draft(found=found, path=_drafts(found)[0], made=missing_folders(found))
    try:
        with _describe(found.path):
            for path in draft.made:
                path.mkdir(mode=0o700)
            remove_drafts(found)
            _write_new(draft.path, text.encode("utf-8"), mode=found.mode, owner=found.owner)
    except BaseException:
        draft.drop()
        raise
    return draft


def _drafts(found: Found) -> tuple[Path, str]:
    name = f".{found.path.name}.postroom-draft-"
    return found.path.with_name(f"{name}{os.getpid()}"), name


def remove_drafts(found: Found) -> None:
    """Remove the temporary files that killed processes have left for a configuration file."""
    folder, name = found.path.parent, _drafts(found)[1]
    for old in [path for path in folder.glob(".*") if path.name.startswith(name)]:
        old.unlink()


def replace(found: Found, text: str) -> None:
    """Replace the content of a file with a text, and create missing folders.

    Raises:
        VersionConflict: Another process has changed the file since it was read.
        ClientFileRefused: The text could not be written. The file is unchanged.
    """
    draft = write_draft(found, text)
    try:
        draft.put()
    except BaseException:
        draft.drop()
        raise


def require_unchanged(found: Found) -> None:
    """Check that a file has not changed since the file was read.

    Raises:
        VersionConflict: The file has changed.
    """
    try:
        present = found.path.read_bytes()
    except FileNotFoundError:
        present = None
    if present != found.content:
        raise VersionConflict(
            f"another program changed {found.path} while setup was changing it",
            value=str(found.path),
            remedy="close the client and run the command again",
        )


def remove(found: Found) -> None:
    """Remove a file.

    Raises:
        VersionConflict: Another process has changed the file since it was read.
        ClientFileRefused: The file could not be removed.
    """
    with _describe(found.path):
        require_unchanged(found)
        found.path.unlink()


def remove_folders(folders: list[Path]) -> list[Path]:
    """Remove the empty folders in a list, and return the folders that still exist."""
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        with suppress(OSError):  # the folder is not empty, or no longer exists
            folder.rmdir()
    return [folder for folder in folders if folder.exists()]


def remove_same(backups: list[Path], content: bytes | None) -> list[Path]:
    """Remove the backups with the content `content`, and return the backups that still exist."""
    left = []
    for backup in backups:
        try:
            if backup.read_bytes() == content:
                backup.unlink()
            else:
                left.append(backup)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(backup)
    return left


@contextmanager
def _describe(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refused(path, f"system error: {error}", choose_remedy(error, path)) from error


def _write_new(target: Path, content: bytes, *, mode: int, owner: tuple[int, int] | None) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a Path cannot open a descriptor
            file.write(content)
            file.flush()
            if owner is not None:
                with suppress(OSError):  # only root can change the owner of a file
                    os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            target.unlink(missing_ok=True)
        raise
