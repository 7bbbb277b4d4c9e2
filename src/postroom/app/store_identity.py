"""Checks that a store belongs to this data folder.

The id of a store is in three places: in the store, next to the token, and in the archive.

    no id anywhere              ─▶ the store gets an id, if it has none, and it is written to all three places
    the same id                 ─▶ the server starts
    an id, and the store is missing,
    empty, older than the archive
    or another one              ─▶ WrongStore, nothing changed; `new_store` continues with the present store

A data folder from a release without ids has no id in these places, and gets one here. If the store of a data
folder is on PostgreSQL, a start with another database raises the error, too, because the address was lost or
is wrong.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from postroom.app.backups import backups_in, get_backups_folder
from postroom.app.config import Settings
from postroom.contracts.clock import Clock, iso
from postroom.contracts.errors import WrongStore
from postroom.log import get_logger
from postroom.mail.archive.archive import StoreMark, read_mark, repositories, write_mark
from postroom.mail.archive.rebuild import read_creation_times
from postroom.stores.outline import StoreIdentity
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.connection import file_error
from postroom.stores.sqlite.generations import forget_generation
from postroom.stores.sqlite.left_log import cut_damaged_log
from postroom.stores.stores import Stores

_LOG = get_logger(__name__)
T = TypeVar("T")
_POSTGRES: Final = "postgresql://"
_ELSEWHERE: Final = (
    "set database_url (and database_schema, if the schema has another name) to the store of this data "
    "folder; or start a new store: `postroom up --new-store` sets the archive aside"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The facts about the expected database that the data folder and the archive contain."""

    beside: StoreMark | None
    """The mark file next to the token."""
    archive: StoreMark | None
    slugs: list[str]
    """The slugs of the repositories in the archive."""
    made: Mapping[str, int] = field(default_factory=dict)
    """When each project was created, according to its repository.

    Read only if no mark identifies the store.
    """
    has_backups: bool = False
    """Whether there are backups in the backup folder. The server makes backups only of SQLite."""
    elsewhere: str = ""
    """The location of the PostgreSQL store of this data folder, if the settings name another database."""

    @classmethod
    def of(cls, settings: Settings) -> "Kept":
        """Read the facts about the expected database from the data folder and the archive.

        Raises:
            ConfigError: A mark cannot be read.
            ArchiveUnavailable: There is no mark, and a repository cannot be read.
            StoreCorrupt: There is no mark, and the record of a project in its repository cannot be read.
            StoreError: The backups folder cannot be read.
        """
        slugs = repositories(settings.storage_root) if settings.archive_enabled else []
        beside, elsewhere = read_mark(settings.data_dir), ""
        if beside and beside.database != settings.shown_database:
            if beside.database.startswith(_POSTGRES):
                elsewhere = beside.database
            else:
                beside = None
        archive = read_mark(settings.storage_root) if slugs else None
        author = (settings.git_author_name, settings.git_author_email)
        return cls(
            beside=beside,
            archive=archive,
            slugs=slugs,
            made={}
            if beside or archive
            else read_creation_times(settings.storage_root, slugs, author=author),
            has_backups=not settings.database_url and bool(backups_in(get_backups_folder(settings))),
            elsewhere=elsewhere,
        )

    @property
    def expects_a_store(self) -> bool:
        """Whether the data folder belongs to an existing database, which a new database must not replace."""
        return self.beside is not None or bool(self.slugs) or self.has_backups

    @property
    def projects(self) -> list[str]:
        """The slugs of the projects that the database must contain or must have contained."""
        return sorted({*self.slugs, *(self.archive.logs if self.archive else ())})

    @property
    def store_id(self) -> str | None:
        """The id of the expected database, or None if the id is unknown."""
        mark = self.beside or self.archive
        return None if mark is None else mark.store_id

    @contextmanager
    def telling_where(self, found: str | None = None) -> Iterator[None]:
        """Add the location of the expected database to a WrongStore error that the block raises.

        `found` is the id of the opened database, or None.

        Raises:
            WrongStore: The block raised this error.
        """
        try:
            yield
        except WrongStore as error:
            if not self.elsewhere or found == self.store_id:
                raise
            raise WrongStore(
                f"this data folder belongs to the store of {self.elsewhere}, and {error.message}",
                value=error.value,
                remedy=_ELSEWHERE,
            ) from error


def settle_identity(store: Stores, settings: Settings, kept: Kept, *, new_store: bool = False) -> Path | None:
    """Compare a database with the mark files, and write missing mark files.

    Blocks. If `new_store` is True, the database replaces the expected database, and the archive is moved to
    another folder. Return the new path of the archive, or None if the archive was not moved.

    Raises:
        WrongStore: The store does not belong to this data folder. Nothing was changed.
        StoreError: The archive cannot be moved.
    """
    value, aside = _wait_for(store.identity(kept.projects)), None
    try:
        refuse_wrong(value, kept, settings)
    except WrongStore:
        if not new_store:
            raise
        root = settings.storage_root
        aside = root.with_name(f"{root.name}.before-new-store.{store.clock.now()}")
        try:
            root.rename(aside)
        except FileNotFoundError:
            aside = None
        except OSError as failure:
            raise file_error(failure, root) from failure
        kept = Kept(beside=None, archive=None, slugs=[])
    store_id = value.store_id or kept.store_id or secrets.token_hex(16)
    if value.store_id is None:
        _wait_for(store.identify(store_id))
        store_id = _wait_for(store.identity()).store_id or store_id  # another server may have been first
    _keep(settings.data_dir, kept.beside, StoreMark(store_id=store_id, database=settings.shown_database))
    if settings.archive_enabled:
        _keep(settings.storage_root, kept.archive, StoreMark(store_id=store_id, logs=value.logs))
    return aside


def adopt_restored(settings: Settings, clock: Clock) -> Path | None:
    """Make a restored database the expected database of the data folder.

    Blocks. If the database is older than the archive, the archive is moved to another folder. Return the new
    path of the archive, or None if the archive was not moved.

    Raises:
        StoreError: The database cannot be opened, or the archive cannot be moved.
        ConfigError, ArchiveUnavailable: The archive cannot be read.
    """
    identity = Kept.of(settings)
    if identity.elsewhere or not (identity.beside or identity.slugs):  # the first start writes missing marks
        return None
    store = SqliteStore.open(settings.database, clock=clock, purpose="restore", may_begin=False)
    try:
        return settle_identity(store, settings, identity, new_store=True)
    finally:
        store.close()


def give_up_damaged_log(settings: Settings, clock: Clock) -> None:
    """Remove the damaged part of a database's write-ahead log, and keep a copy of all files.

    Blocks.

    Raises:
        StoreError: The files cannot be copied, or another process uses the database.
    """
    if settings.database_url:
        return
    if kept_path := cut_damaged_log(settings.database, now=clock.now()):
        _LOG.warning("store.log_given_up", database=str(settings.database), kept=str(kept_path))
    try:
        forget_generation(settings.database)
    except OSError as error:
        raise file_error(error, settings.database) from error


def _wait_for(asked: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, asked).result()


def refuse_wrong(found: StoreIdentity, kept: Kept, settings: Settings) -> None:
    """Raise an error if a database does not belong to the data folder.

    Raises:
        WrongStore: The store is empty, older than the archive or has another id.
    """
    if reason := _what_is_wrong(found, kept):
        remedy = WrongStore.on_postgres if settings.database_url else WrongStore.default_remedy
        with kept.telling_where(found.store_id):
            raise WrongStore(
                f"the database {settings.shown_database} {reason}", value=found.store_id, remedy=remedy
            )


def _what_is_wrong(found: StoreIdentity, kept: Kept) -> str:
    if found.store_id is None:
        if kept.slugs and not (found.logs or found.merged):
            return f"has none of the projects of the archive: {', '.join(kept.slugs[:5])}"
        if (kept.store_id is not None or kept.has_backups) and not found.is_used:
            return "is empty, but this data folder had a store"
        return _what_is_missing(found, kept)
    for place, mark in (("data folder", kept.beside), ("archive", kept.archive)):
        if mark is not None and mark.store_id != found.store_id:
            return f"is store {found.store_id}, but the {place} belongs to store {mark.store_id}"
    return _what_is_missing(found, kept)


def _what_is_missing(found: StoreIdentity, kept: Kept) -> str:
    for slug, made in found.made.items():
        if kept.made.get(slug, made) != made:
            return (
                f"has a project {slug} from {iso(made)}, but the archive's project {slug} is from "
                f"{iso(kept.made[slug])}"
            )
    for slug, newest in kept.archive.logs.items() if kept.archive else ():
        if slug not in found.logs and slug not in found.merged:
            return f"lacks the project {slug} and is older than the archive, which has it"
        if found.logs.get(slug, newest) < newest:
            return (
                f"ends with entry {found.logs[slug]} in the log of the project {slug} and is older "
                f"than the archive, which has entry {newest}"
            )
    return ""


def _keep(folder: Path, kept: StoreMark | None, mark: StoreMark) -> None:
    if kept == mark:
        return
    try:
        write_mark(folder, mark)
    except OSError as error:
        _LOG.warning("store.mark_not_written", folder=str(folder), reason=error.strerror)
