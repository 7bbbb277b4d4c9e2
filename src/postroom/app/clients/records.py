"""Records what setup wrote, in a private file of this user, so that `setup remove` can undo just that.

The record of a file is written before the file is. A crash in between leaves a record of what is not there,
and taking out what is not there changes nothing.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from postroom.app import places
from postroom.app.clients.config_edits import AppliedEdit
from postroom.contracts.errors import ConfigError, VersionConflict

PATIENCE: Final = timedelta(seconds=30)
_FORM: Final = "files-1"


@dataclass(slots=True, kw_only=True)
class Record:
    """What was done to one file."""

    clients: list[str] = field(default_factory=list)
    """The clients that were set up in it, also those that needed no change."""
    applied_edits: list[AppliedEdit] = field(default_factory=list)
    made_file: bool = False
    folders: list[Path] = field(default_factory=list)
    """The folders that were made for it."""
    backups: list[Path] = field(default_factory=list)

    def of(self, client: str) -> list[AppliedEdit]:
        """Return what was written for one client, in order."""
        return [applied for applied in self.applied_edits if applied.client == client]


class Records:
    """The records of this user, changed only inside `kept`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        folder = places.machine_dir(environment)
        self._file = folder / "setup.json"
        self._lock = folder / "setup.lock"
        self._found: dict[str, Record] = {}
        self.load()

    def load(self) -> None:
        """Read the records from disk.

        Raises:
            ConfigError: the file cannot be read as records.
        """
        try:
            found = json.loads(self._file.read_bytes())
            self._found = {path: _record(one) for path, one in found[_FORM].items()}
        except FileNotFoundError:
            self._found = {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{self._file} cannot be read as a record of setup: {error}",
                value=str(self._file),
                remedy="move the file away: `setup remove` then takes out what bears our name",
            ) from error

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Hold the lock: one process at a time changes files and records.

        Raises:
            VersionConflict: another one does so, and did not end in time.
            ConfigError: the folder cannot be made or written.
        """
        lock = FileLock(self._lock, timeout=PATIENCE.total_seconds(), mode=0o600)
        try:
            self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise VersionConflict("another `postroom setup` is at work", remedy="run it again") from error
        except OSError as error:
            raise ConfigError(f"the folder {self._lock.parent} cannot be written: {error}") from error
        try:
            self.load()
            yield
        finally:
            lock.release()

    def get(self, path: Path) -> Record:
        """Return the record of a file; a new one when there is none."""
        return self._found.get(str(path)) or Record()

    def put(self, path: Path, record: Record) -> None:
        """Store the record of a file; without clients it is dropped, and with the last record our file.

        Raises:
            ConfigError: it cannot be written.
        """
        if record.clients:
            self._found[str(path)] = record
        else:
            self._found.pop(str(path), None)
        document = {_FORM: {key: _plain(one) for key, one in self._found.items()}}
        try:
            if self._found:
                places.write_private(self._file, json.dumps(document, indent=1))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be written: {error}", value=str(self._file)) from error

    def pass_on(self, folders: list[Path]) -> None:
        """Pass folders on to the record of a file in them, which removes them later.

        Raises:
            ConfigError: the records cannot be written.
        """
        for folder in folders:
            heir = next((path for path in self._found if Path(path).is_relative_to(folder)), None)
            if heir is not None and folder not in self._found[heir].folders:
                self._found[heir].folders.append(folder)
                self.put(Path(heir), self._found[heir])


def _plain(record: Record) -> dict[str, object]:
    return {
        "clients": record.clients,
        "marks": [asdict(applied) for applied in record.applied_edits],
        "made_file": record.made_file,
        "folders": [str(one) for one in record.folders],
        "backups": [str(one) for one in record.backups],
    }


def _record(found: dict[str, Any]) -> Record:
    applied_edits = [
        AppliedEdit(**{**one, "path": tuple(one["path"]), "goes_with": tuple(one["goes_with"])})
        for one in found["marks"]
    ]
    return Record(
        clients=list(found["clients"]),
        applied_edits=applied_edits,
        made_file=bool(found["made_file"]),
        folders=[Path(one) for one in found["folders"]],
        backups=[Path(one) for one in found["backups"]],
    )
