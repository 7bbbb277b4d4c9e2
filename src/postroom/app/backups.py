"""Daily backups. A backup is a complete copy of the database. The copy is verified before it gets its name.

    due ──▶ copied ──▶ verified by a separate process ──▶ named ──▶ older daily backups removed
             └──failed: logged, shown, retried after a growing pause

Backups by `postroom backup` are in the same folder, and stay until `postroom backup prune`. A daily backup
whose date is in the future also stays: the clock is or was wrong, so the age of the backup is unknown.
"""

import asyncio
import fnmatch
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from postroom.app.check_results import CheckResult, free_bytes, span
from postroom.app.config import Settings
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts import progress
from postroom.contracts.clock import Clock, Timer, iso, milliseconds
from postroom.contracts.errors import (
    InvalidPath,
    PostroomError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from postroom.http_api.readiness import CheckState
from postroom.log import get_logger
from postroom.stores.sqlite.apart import Apart
from postroom.stores.sqlite.connection import file_error, refuse_no_folder
from postroom.stores.sqlite.copying import (
    PARTIAL,
    digest_file,
    name_with_digest,
    refuse_changed,
    refuse_cut_off,
    refuse_faults,
    remove_with_companions,
)
from postroom.stores.sqlite.engine import refuse_missing
from postroom.stores.sqlite.restoring import reading
from postroom.stores.stores import Stores

FIRST_LOOK: Final = timedelta(minutes=1)
"""The time from the start until the first check."""
MAX_WAIT: Final = timedelta(minutes=10)
"""The maximum time until it is noticed that the clock was changed, or that the machine was asleep."""
FIRST_PAUSE: Final = timedelta(minutes=5)
MAX_PAUSE: Final = timedelta(hours=6)
_ROOM: Final = 2
"""The required free space, in multiples of the database's size: one for the copy, one for new mail."""
_SOME: Final = 2
"""The number of backups from which an error about a full disk suggests to remove older ones."""
_NAME: Final = re.compile(r"(daily|postroom)-(\d{4}-\d{2}-\d{2}T\d{9}Z)\.db")
SUFFIX: Final = ".db"
COPY: Final = ".copy"
"""The suffix of the file name of a copy that has not been verified yet."""
_LOG = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup in the backup folder.

    `made_at` is the time in the file name, or the time of the file's last change.
    """

    path: Path
    made_at: int
    is_timed: bool
    size: int
    """The size of the file in bytes."""
    fault: str = ""
    """Why the backup cannot be restored, or "" if its first page shows no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupState:
    """The newest backup, the damaged backups, and the failed attempts to make a backup."""

    interval_ms: int
    """The time between two backups, in milliseconds, or 0 if there are no daily backups."""
    newest: Backup | None
    """The newest existing backup, by the timer or by a person."""
    age_ms: int | None
    damaged: tuple[str, ...]
    """The names of the damaged backups."""
    failure: PostroomError | None
    """Why the last attempt failed, or why the next attempt will fail, or None if there is no failure."""
    tries: int
    """The number of failed attempts since the last success."""

    @property
    def is_overdue(self) -> bool:
        """Whether the newest backup is older than two intervals."""
        return bool(self.interval_ms) and self.age_ms is not None and self.age_ms > 2 * self.interval_ms


class Backups:
    """Makes daily backups in the background, between the calls of `start` and `stop`."""

    def __init__(
        self,
        settings: Settings,
        store: Stores,
        clock: Clock,
        *,
        timer: Timer | None = None,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.folder = get_backups_folder(settings)
        self._database = settings.database
        self._interval_ms = 0 if settings.database_url else milliseconds(settings.backup_interval)
        self._keep = settings.backup_keep
        self._store = store
        self._clock = clock
        self._timer = timer or SystemTimer()
        self._free = free
        self._failure: PostroomError | None = None
        self._tries = 0
        self._one_at_a_time = asyncio.Lock()
        self._apart = Apart()
        self._tasks = Tasks("backups")

    def start(self) -> None:
        """Start the timer for daily backups; do nothing if daily backups are turned off."""
        if self._interval_ms:
            self._tasks.start(self._serve(), name="timer")

    async def stop(self) -> None:
        """Stop the timer for daily backups. A backup in progress ends when the store is closed."""
        await self._tasks.close()

    async def make(self, name: str) -> Backup:
        """Write and verify a backup while the server runs; `name` is the file name without a suffix.

        Raises:
            StoreError: The database cannot be read, or the backup cannot be written. The folder is unchanged.
            StateError: Another process is writing a backup with this name.
        """
        target, copy = (self.folder / f"{name}{suffix}" for suffix in (SUFFIX, COPY))
        async with self._one_at_a_time:
            await asyncio.to_thread(self._prepare)
            try:
                await self._store.back_up(copy, is_read_back=False)
                digest = await self._apart.read_back(copy)
                return await asyncio.to_thread(self._list_matching, copy, target, digest)
            finally:
                await asyncio.to_thread(copy.unlink, missing_ok=True)

    async def state(self) -> BackupState:
        """Return the state of the backups: the newest backup, damaged backups and failed attempts.

        Raises:
            StoreError: The folder cannot be read.
        """
        now = self._clock.now()
        backups, no_folder = await asyncio.to_thread(_found, self.folder)
        newest = _newest(backups, now)
        return BackupState(
            interval_ms=self._interval_ms,
            newest=newest,
            age_ms=None if newest is None else now - newest.made_at,
            damaged=tuple(backup.path.name for backup in backups if backup.fault),
            failure=no_folder or self._failure,
            tries=self._tries,
        )

    async def check_backups(self, *, full: bool) -> BackupState:
        """Check each backup, and return the state of the backups.

        If `full` is True, each file is read completely. If `full` is False, only the length of each file is
        checked.

        Raises:
            StoreError: The folder cannot be read.
        """
        (backups, _), now = await asyncio.to_thread(_found, self.folder), self._clock.now()
        damaged = await asyncio.to_thread(_report_damaged, backups, full=full)
        newest = _newest([backup for backup in backups if backup.path.name not in damaged], now)
        age_ms = None if newest is None else now - newest.made_at
        return replace(await self.state(), newest=newest, age_ms=age_ms, damaged=damaged)

    async def round(self) -> int:
        """Make a daily backup if one is due, and return the milliseconds until the next check."""
        try:
            # Make a backup if one is due, and determine in how many milliseconds the next one is due.
            timed = await self._list_daily()
            age = self._clock.now() - timed[-1].made_at if timed else self._interval_ms
            if age < self._interval_ms:
                wait = self._interval_ms - age
            else:
                made = await self.make(f"daily-{stamp(self._clock.now())}")
                self._failure, self._tries = None, 0
                _LOG.info("backup.made", file=made.path.name, size=made.size)
                await asyncio.to_thread(self._remove, (await self._list_daily())[: -self._keep])
                wait = self._interval_ms
        except PostroomError as error:
            self._failure, self._tries = error, self._tries + 1
            _LOG.error("backup.failed", code=error.code, reason=error.message, tries=self._tries)
            pause = milliseconds(FIRST_PAUSE) << min(self._tries - 1, 10)
            return min(pause, milliseconds(MAX_PAUSE), self._interval_ms)
        return min(wait, milliseconds(MAX_WAIT))

    async def _serve(self) -> None:
        wait = milliseconds(FIRST_LOOK)
        while True:
            await self._timer.sleep(wait)
            wait = await self.round()

    async def _list_daily(self) -> list[Backup]:
        backups, now = await asyncio.to_thread(backups_in, self.folder), self._clock.now()
        timed = [backup for backup in backups if backup.is_timed and backup.made_at <= now]
        return sorted(timed, key=lambda one: one.made_at)

    def _list_matching(self, copy: Path, target: Path, digest: str) -> Backup:
        try:
            name_with_digest(copy, target, digest)
            return _backup(target)
        except OSError as error:
            raise file_error(error, target) from error

    def _prepare(self) -> None:
        """Create the backup folder, remove unfinished copies, and check the free space."""
        refuse_missing(self._database)
        refuse_no_folder(self.folder)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_leftovers(self.folder)
            size = self._database.stat().st_size
            log_file = self._database.with_name(f"{self._database.name}-wal")
            log = log_file.stat().st_size if log_file.exists() else 0  # the log may contain much of the data
            free = self._free(self.folder)
        except OSError as error:
            raise file_error(error, self.folder) from error
        if free < (needed := _ROOM * (size + log)):
            remedy = f"free space on the disk of {self.folder}"
            if len(backups_in(self.folder)) < _SOME:
                making_room = remedy
            else:
                making_room = (
                    f"{remedy}, or remove older backups: `postroom backup prune --keep 1` keeps the newest"
                )
            raise StoreFull(
                f"no backup was made: it needs {needed} bytes of free space, twice the size of the "
                f"database ({size}) and its log ({log}), but only {free} bytes are free",
                value=free,
                remedy=making_room,
            )

    def _remove(self, older: list[Backup]) -> None:
        try:
            for backup in older:
                remove(backup)
                _LOG.info("backup.removed", file=backup.path.name)
        except OSError as error:  # the next backup tries again to remove the file
            _LOG.warning("backup.not_removed", reason=str(error))


def remove(backup: Backup) -> None:
    """Remove a backup and its digest. Blocks.

    Raises:
        OSError: A file cannot be removed.
    """
    remove_with_companions(backup.path)
    digest_file(backup.path).unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished copies of a killed process, and digests without a backup.

    Blocks. The caller must ensure that no process is writing a backup to the folder.

    Raises:
        OSError: A file cannot be removed.
    """
    for kind in ("daily", "postroom"):
        for named in (f"{kind}-*{SUFFIX}{PARTIAL}*", f"{kind}-*{COPY}*"):
            for left in _list_matching(folder, named):
                left.unlink(missing_ok=True)
        for digest in _list_matching(folder, f"{kind}-*{SUFFIX}.sha256"):
            if not digest.with_suffix("").exists():
                digest.unlink(missing_ok=True)


def _list_matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files in a folder that match a pattern; return no files if the folder does not exist.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        return [path for path in folder.iterdir() if fnmatch.fnmatch(path.name, pattern)]
    except FileNotFoundError:
        return []


def get_backups_folder(settings: Settings) -> Path:
    """Return the path of the folder for backups."""
    return settings.data_dir / "backups"


def backups_in(folder: Path) -> list[Backup]:
    """Return the backups in a folder in any order; return no backups if the folder does not exist.

    Blocks. Folders, links, and files without the name of a backup are ignored.

    Raises:
        StoreError: The folder cannot be read, or is not a folder.
    """
    refuse_no_folder(folder)
    try:
        named = (path for path in _list_matching(folder, f"*{SUFFIX}") if _NAME.fullmatch(path.name))
        return [_backup(path) for path in named if path.is_file() and not path.is_symlink()]
    except OSError as error:
        raise file_error(error, folder, is_read=True) from error


def _found(folder: Path) -> tuple[list[Backup], StoreReadOnly | None]:
    try:
        return backups_in(folder), None
    except StoreReadOnly as error:
        return [], error


def newest_backup(folder: Path, now: int) -> Backup | None:
    """Return the newest backup in a folder, or None; backups with a date in the future are ignored. Blocks.

    Raises:
        StoreError: The folder cannot be read.
    """
    return _newest(backups_in(folder), now)


def _newest(found: Sequence[Backup], now: int) -> Backup | None:
    past = [backup for backup in found if backup.made_at <= now and not backup.fault]
    return max(past, key=lambda one: one.made_at, default=None)


def stamp(instant: int) -> str:
    """Return a time in the format of backup file names."""
    return iso(instant).replace(":", "").replace(".", "")


def _report_damaged(found: Sequence[Backup], *, full: bool) -> tuple[str, ...]:
    damaged = sorted(backup.path for backup in found if (find_fault(backup) if full else backup.fault))
    return tuple(path.name for path in damaged if path.exists())  # another process may have removed it


def find_fault(backup: Backup) -> str:
    """Read a whole backup, and return the reason why the backup is damaged; return "" for an intact backup.

    Blocks.
    """
    if backup.fault:
        return backup.fault
    try:
        refuse_changed(backup.path, backup.path)
        refuse_faults(backup.path)
    except StoreError as error:
        return error.message
    except OSError as error:
        return file_error(error, backup.path, is_read=True).message
    return ""


def _backup(path: Path) -> Backup:
    value = path.stat()
    match = _NAME.fullmatch(path.name)
    at = None
    if match is not None:
        with suppress(ValueError):  # the name contains no time, but only digits
            moment = datetime.fromisoformat(f"{match[2][:17]}.{match[2][17:]}")
            at = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    fault = ""
    try:
        refuse_cut_off(path)
    except StoreCorrupt as error:
        fault = error.message
    except PermissionError as error:  # an unreadable backup must not hide the other backups
        fault = file_error(error, path, is_read=True).message
    return Backup(
        path=path,
        made_at=value.st_mtime_ns // 1_000_000 if at is None else at,
        is_timed=match is not None and match[1] == "daily" and at is not None,
        size=value.st_size,
        fault=fault,
    )


def named_backup(source: Path, settings: Settings) -> Path:
    """Return the path of a backup, given the path or the name of the backup.

    Raises:
        InvalidPath: The backup does not exist.
        StoreReadOnly: The backup or its folder cannot be read.
    """
    inside = [get_backups_folder(settings) / name for name in (source.name, f"{source.name}{SUFFIX}")]
    with reading(source):
        path = next((item for item in (source, *inside) if item.exists()), None)
    if path is None:
        raise InvalidPath(
            f"no backup {str(source)!r}",
            value=str(source),
            remedy="choose a backup from `postroom backup list`, or pass a file",
        )
    return path


def examined_backups(folder: Path, *, check: bool) -> list[dict[str, object]]:
    """Return the name, time, size and fault of each backup in a folder, oldest backup first.

    If `check` is True, each backup is read completely.
    """
    return [_examine(backup, check=check) for backup in _by_age(folder)]


def _examine(one: Backup, *, check: bool) -> dict[str, object]:
    if check:
        progress.tell(f"reading {one.path.name}")
    fault = find_fault(one) if check else one.fault
    return {
        "name": one.path.name,
        "made_at": iso(one.made_at),
        "size": one.size,
        "checked": check,
        "fault": fault,
    }


def backups_beyond(folder: Path, keep: int) -> list[Backup]:
    """Return all backups in a folder except the newest `keep` intact backups.

    Reads every backup completely.
    """
    backups, kept_backups = _by_age(folder), list[Backup]()
    for backup in reversed(backups):
        if len(kept_backups) < keep and not _examine(backup, check=True)["fault"]:
            kept_backups.append(backup)
    return [backup for backup in backups if backup not in kept_backups]


def _by_age(folder: Path) -> list[Backup]:
    return sorted(backups_in(folder), key=lambda one: (one.made_at, one.path.name))


def told_of_backups(found: BackupState) -> CheckResult:
    """Return the check result for the state of the backups."""
    state, detail, remedy = _backups_in_words(found)
    facts = {
        "interval_ms": found.interval_ms,
        "age_ms": found.age_ms,
        "tries_failed": found.tries,
        "code": None if found.failure is None else found.failure.code,
    }
    return CheckResult(part="backups", state=state, detail=detail, remedy=remedy, facts=facts)


def _backups_in_words(found: BackupState) -> tuple[CheckState, str, str]:
    newest = "there is no backup"
    if found.newest is not None and found.age_ms is not None:
        newest = f"the newest backup, {found.newest.path.name}, is {span(found.age_ms)} old"
    if found.failure is not None:
        tries = f"the last {found.tries} attempts to make a backup failed: " if found.tries else ""
        seen = "" if isinstance(found.failure, StoreReadOnly) and not found.newest else f"; {newest}"
        detail = f"{tries}{found.failure.message}{seen}"
        return "failed", detail, found.failure.remedy
    if found.damaged:
        detail = f"{len(found.damaged)} backups are damaged: {', '.join(found.damaged[:5])}; {newest}"
        return (
            "failed",
            detail,
            (
                "run `postroom backup` to make an intact backup; `postroom backup list --check` shows what "
                "is damaged in the others, and `postroom backup prune` removes them"
            ),
        )
    if found.is_overdue:
        return "failed", newest, "read in the log why no backup was made, or run `postroom backup`"
    if not found.interval_ms:
        remedy = "set backup_interval to a time above 0, or run `postroom backup` from a timer of your own"
        return "unknown", f"automatic backups are disabled; {newest}", remedy
    if found.newest is None:
        detail = f"{newest} yet; the server makes the first backup 1 minute after its start"
        return "unknown", detail, "wait for the server's first backup, or run `postroom backup`"
    return "ok", newest, ""
