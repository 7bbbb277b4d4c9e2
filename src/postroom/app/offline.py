"""Operations that need no running server: a backup, the checks, and a support bundle."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from postroom.app import places
from postroom.app.backups import COPY, SUFFIX, get_backups_folder, newest_backup, remove_leftovers, stamp
from postroom.app.check_results import (
    CheckResult,
    backed_up_elsewhere,
    broken,
    span,
    told_of_disk,
    told_of_messages,
)
from postroom.app.config import Settings, load_settings
from postroom.app.doctor import damaged_messages
from postroom.app.privacy import told_of_folders
from postroom.app.store_identity import Kept, refuse_wrong
from postroom.app.support import as_json, common_documents, outline_documents, told_findings
from postroom.app.tokens import load_or_make_token
from postroom.contracts.errors import InvalidPath, PostroomError, StateError, StoreCorrupt, StoreError
from postroom.services.administration import ChecksView, CheckView
from postroom.stores.postgres.errors import BACKUP_OF_POSTGRES, no_backup
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite.connection import (
    connect,
    file_error,
    refuse_denied,
    refuse_no_file,
    refuse_no_folder,
    translated,
)
from postroom.stores.sqlite.copying import back_up, hash_file, name_with_digest
from postroom.stores.sqlite.engine import refuse_missing
from postroom.stores.sqlite.generations import refuse_lost_commits
from postroom.stores.sqlite.left_log import refuse_damaged_log
from postroom.stores.sqlite.lock import OwnerLock
from postroom.stores.sqlite.looking import (
    damaged_messages_of_file,
    identity_of_file,
    look_into_file,
    outline_of_file,
)
from postroom.stores.sqlite.migrate import applied_steps
from postroom.stores.sqlite.repairing import lacking_tables
from postroom.stores.sqlite.restoring import checked_schema, known_schema, writing


def back_up_offline(target: Path | None, *, data_dir: Path | None, now: int) -> dict[str, object]:
    """Write a verified copy of a database that no server is using.

    Raises:
        StoreHeld: A server uses the database.
        StateError: There is no database yet, or it is on PostgreSQL.
        InvalidPath: The target exists.
    """
    settings = load_settings(overrides={"data_dir": data_dir})
    if settings.database_url:
        raise no_backup()
    chosen = target or get_backups_folder(settings) / f"postroom-{stamp(now)}{SUFFIX}"
    try:
        is_there = chosen.exists()
    except OSError as error:
        raise file_error(error, chosen.parent) from error
    if is_there:
        raise InvalidPath(f"{chosen} exists already", value=str(chosen), remedy="choose another file name")
    _require(settings.database)
    refuse_no_folder(chosen.parent)
    try:
        chosen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(error, chosen.parent) from error
    with _lock_database(settings.database, now, "backup"):
        if target is None:
            folder = chosen.parent
            try:
                remove_leftovers(folder)
            except OSError as error:
                raise file_error(error, folder) from error
        with translated(), closing(connect(settings.database)) as connection:
            known_schema(applied_steps(connection), settings.database)
            if target is None:
                copy = chosen.with_suffix(COPY)
                back_up(connection, copy, is_read_back=True)
                with writing(chosen):
                    name_with_digest(copy, chosen, hash_file(copy))
            else:
                back_up(connection, chosen, is_read_back=True)
    return {"path": str(chosen), "bytes": chosen.stat().st_size}


def examine_offline(absent: PostroomError, *, data_dir: Path | None, now: int) -> ChecksView:
    """Check the parts of the installation that can be checked without a server.

    `absent` is the error that occurred when the server was asked.
    """
    settings: Settings | None = None
    checks = [_finding("server", absent)]
    try:
        settings = load_settings(overrides={"data_dir": data_dir})
    except PostroomError as error:
        checks.append(_finding("settings", error))
    else:
        checks.append(_finding("settings"))
        checks.append(_run_check("token", lambda: _look_at_token(settings)))
        checks.append(_run_check("store", lambda: _look_at_store(settings, now)))
        seen = (
            _messages(settings, now),
            _backups(settings, now),
            told_of_folders(settings),
            told_of_disk(settings.growing),
        )
        checks += [result.as_dict() for result in seen]
    return {"ok": False, "checks": checks}


def support_offline(absent: PostroomError, *, data_dir: Path | None, now: int) -> dict[str, str]:
    """Return the files of a support bundle that can be created without a server.

    Raises:
        ConfigError: The settings cannot be read.
    """
    settings = load_settings(overrides={"data_dir": data_dir})
    results = [broken("server", absent)]
    fields: dict[str, str] = {}
    try:
        if settings.database_url:
            with closing(_postgres(settings)) as store:
                outline = asyncio.run(store.outline())
        else:
            _require(settings.database)
            with _lock_database(settings.database, now, "support"):
                outline = outline_of_file(settings.database)
        fields = outline_documents(outline)
    except PostroomError as error:
        results.append(broken("store", error))
    else:
        results.append(CheckResult(part="store", state="ok", detail="the schema is readable"))
    results += [_backups(settings, now), told_of_disk(settings.growing)]
    return {**common_documents(settings), **fields, "doctor.json": as_json(told_findings(results))}


@contextmanager
def _lock_database(database: Path, now: int, purpose: str) -> Iterator[None]:
    lock = OwnerLock(database)
    lock.acquire(now=now, purpose=purpose)
    try:
        refuse_damaged_log(database)
        yield
    finally:
        lock.release()


def _require(database: Path) -> None:
    refuse_no_file(database)
    if not database.exists():
        raise StateError(
            f"no database at {database}",
            value=str(database),
            remedy="start a server once with `postroom up`, or correct --data-dir",
        )
    refuse_denied(database)


def _look_at_token(settings: Settings) -> None:
    if places.token_file(settings.data_dir).exists():
        load_or_make_token(places.token_file(settings.data_dir))


def _postgres(settings: Settings) -> PostgresStore:
    return PostgresStore.open(
        settings.database_url,
        direct_dsn=settings.database_direct_url,
        schema=settings.database_schema,
        may_begin=False,
    )


def _look_at_store(settings: Settings, now: int) -> None:
    stored_identity = Kept.of(settings)
    if settings.database_url:
        with stored_identity.telling_where():
            opened = _postgres(settings)
        with closing(opened) as store:
            asyncio.run(store.probe())
            if faults := asyncio.run(store.check()):
                raise StoreCorrupt("; ".join(faults[:5]), remedy=BACKUP_OF_POSTGRES)
            refuse_wrong(asyncio.run(store.identity(stored_identity.projects)), stored_identity, settings)
        return
    if stored_identity.expects_a_store:
        refuse_no_file(settings.database)
        with stored_identity.telling_where():
            refuse_missing(settings.database)
    _require(settings.database)
    with _lock_database(settings.database, now, "doctor"):
        checked_schema(settings.database, settings.database)
        look_into_file(settings.database, partial(refuse_lost_commits, database=settings.database))
        if faults := look_into_file(settings.database, lacking_tables):
            raise StoreCorrupt("; ".join(faults[:5]))
        identity = identity_of_file(settings.database, stored_identity.projects)
    if identity is not None:
        refuse_wrong(identity, stored_identity, settings)


def _messages(settings: Settings, now: int) -> CheckResult:
    try:
        if settings.database_url:
            with closing(_postgres(settings)) as store:
                return told_of_messages(asyncio.run(damaged_messages(store)))
        _require(settings.database)
        with _lock_database(settings.database, now, "doctor"):
            damaged = damaged_messages_of_file(settings.database)
    except PostroomError as error:
        detail = f"messages were not verified: {error.message}"
        return CheckResult(part="messages", state="unknown", detail=detail, remedy=error.remedy)
    if damaged is None:
        detail = "the schema of this database has no checksums yet"
        return CheckResult(
            part="messages", state="unknown", detail=detail, remedy="start a server once with `postroom up`"
        )
    return told_of_messages(damaged)


def _backups(settings: Settings, now: int) -> CheckResult:
    if settings.database_url:
        return backed_up_elsewhere()
    try:
        newest = newest_backup(get_backups_folder(settings), now)
    except StoreError as error:
        return broken("backups", error)
    if newest is None:
        return CheckResult(
            part="backups", state="unknown", detail="no backups", remedy="run `postroom backup`"
        )
    detail = f"the newest backup, {newest.path.name}, is {span(now - newest.made_at)} old"
    return CheckResult(part="backups", state="ok", detail=detail)


def _run_check(name: str, look: Callable[[], None]) -> CheckView:
    try:
        look()
    except PostroomError as error:
        return _finding(name, error)
    return _finding(name)


def _finding(name: str, error: PostroomError | None = None) -> CheckView:
    if error is None:
        return {"name": name, "state": "ok", "detail": "", "remedy": ""}
    return {"name": name, "state": "failed", "detail": error.message, "remedy": error.remedy}
