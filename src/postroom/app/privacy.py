"""Keeps the server's files private to its user, even inside folders that everybody can read."""

import os
import stat
from pathlib import Path
from typing import Final

from postroom.app.backups import get_backups_folder
from postroom.app.check_results import CheckResult
from postroom.app.config import Settings
from postroom.app.places import agent_token_dir
from postroom.contracts.errors import ConfigError

_SHARED: Final = stat.S_IRWXG | stat.S_IRWXO


def private_places(settings: Settings) -> list[Path]:
    """Return the folders and files of a server that only the server's user may access."""
    folder = settings.data_dir
    return [
        folder,
        settings.storage_root,
        get_backups_folder(settings),
        agent_token_dir(folder),
        folder / "gateway",
        *([] if settings.database_url else [settings.database]),
    ]


def keep_private(settings: Settings) -> None:
    """Remove the permissions of other users on postroom's private files and folders. Blocks.

    Raises:
        ConfigError: Other users can use a file, and the file belongs to another user.
    """
    for path in private_places(settings):
        if not _is_readable_by_others(path):
            continue
        value = path.stat()
        if value.st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(value.st_mode) & ~_SHARED)
        elif path != settings.data_dir or value.st_mode & stat.S_IWOTH:
            # Another user may own the data folder itself, for example a mounted volume. Only its contents
            # must be private.
            access_error = ConfigError(
                f"other users can use {path} (mode {stat.S_IMODE(value.st_mode):04o}), and it belongs to "
                f"user {value.st_uid}, not to the server's user {os.geteuid()}",
                value=str(path),
                remedy=(
                    f"run `chown -R {os.geteuid()} {path}` as root, run this command as user {value.st_uid}, "
                    "or use another path: see `postroom config show`"
                ),
            )
            raise access_error


def told_of_folders(settings: Settings) -> CheckResult:
    """Check whether other users of this machine can access the server's files. Blocks."""
    shared = [
        f"{path} (mode {stat.S_IMODE(path.stat().st_mode):04o})"
        for path in private_places(settings)
        if _is_readable_by_others(path)
    ]
    if not shared:
        return CheckResult(part="folders", state="ok", detail="only the server's user can use these files")
    return CheckResult(
        part="folders",
        state="failed",
        detail=f"other users can use {', '.join(shared)}",
        remedy="run chmod go-rwx on each of them; the next start of the server does it for the files of "
        "the server's user",
        facts={"shared": len(shared)},
    )


def _is_readable_by_others(path: Path) -> bool:
    if not path.exists():
        return False
    mode = path.stat().st_mode
    # A device used as the database can be open to everybody.
    return bool(mode & _SHARED) and (stat.S_ISDIR(mode) or stat.S_ISREG(mode))
