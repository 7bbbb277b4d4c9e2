"""The edits that `setup` plans for a client's file, and the record with which it removes them.

The record is in a private file of this user. `setup remove` removes exactly the recorded parts. The record is
written before the client's file. After a crash in between, the record may list parts that do not exist. The
removal of such parts changes nothing.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from filelock import FileLock, Timeout

from postroom.app import places
from postroom.app.clients.files import choose_remedy
from postroom.contracts.errors import ConfigError, VersionConflict

STDIO_KEYS: Final = frozenset({"command", "args", "env", "environment", "cwd"})
HTTP_KEYS: Final = frozenset(
    {"url", "httpUrl", "serverUrl", "headers", "oauth", "bearer_token_env_var", "http_headers"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEdit:
    """A value that a configuration file must contain: a member of an object, or an item of an array."""

    path: tuple[str, ...]
    """The keys that lead to the part's object or array."""
    key: str = ""
    """The name of the part in its object, or "" for an item of an array."""
    value: object
    sign: str = ""
    """A text that identifies postroom's item in an array, even if other parts of the item have changed."""
    only_new: bool = False
    """Whether the edit is made only if there is no value yet. Every existing value is accepted."""
    goes_with: tuple[str, ...] = ()
    """The path of the part that needs this part. Both parts are removed together."""

    @property
    def foreign(self) -> frozenset[str]:
        """The keys for the unused transport (HTTP or stdio), which an entry must not contain."""
        if self.sign or not isinstance(self.value, Mapping):
            return frozenset()
        return STDIO_KEYS if HTTP_KEYS & self.value.keys() else HTTP_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedEdit:
    """A record of a value that `setup` wrote, which `setup remove` needs to find the value again."""

    client: str
    kind: Literal["root", "container", "entry", "item", "replaced", "table", "file", "block"]
    path: tuple[str, ...]
    """The keys that lead to the edited value, or to the array of an edited item.

    The keys are empty if the edit is a whole file.
    """
    before: str = ""
    """The whitespace that was written before the part. Before a block, the whitespace can be a line end."""
    after: str = ""
    """The whitespace that was written after the part."""
    was: str = ""
    """The text that the part replaced."""
    sign: str = ""
    goes_with: tuple[str, ...] = ()


def fits(found: object, edit: ConfigEdit) -> bool:
    """Return whether a value in a file contains the value of an edit; additional members are allowed."""
    if edit.only_new:
        return True
    if isinstance(found, Mapping) and edit.foreign & found.keys():
        return False
    return _covers(found, edit.value)


def _covers(found: object, wanted: object) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and _covers(found[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and all(
            any(_covers(item, value) for item in found) for value in wanted
        )
    return found == wanted and type(found) is type(wanted)


def mended(found: object, edit: ConfigEdit) -> object:
    """Return an edit's value with the members that people have added to `found`, the value in a file."""
    if not isinstance(found, Mapping) or not isinstance(edit.value, Mapping):
        return edit.value
    by_key = {key: value for key, value in found.items() if key not in edit.foreign}
    result = {**by_key, **edit.value}
    for key, value in edit.value.items():
        theirs = found.get(key)
        if edit.sign and isinstance(value, list) and isinstance(theirs, list):
            result[key] = value + [item for item in theirs if not bears(item, edit.sign)]
    return result


def bears(found: object, sign: str) -> bool:
    """Return whether a value contains the text `sign` at any depth."""
    if isinstance(found, Mapping):
        return any(bears(value, sign) for value in found.values())
    if isinstance(found, list):
        return any(bears(value, sign) for value in found)
    return isinstance(found, str) and sign in found


PATIENCE: Final = timedelta(seconds=30)
_FORM: Final = "files-1"


@dataclass(slots=True, kw_only=True)
class Record:
    """The record of all changes that `setup` made to one file."""

    clients: list[str] = field(default_factory=list)
    """The clients that were set up in this file, including those that needed no change."""
    applied_edits: list[AppliedEdit] = field(default_factory=list)
    made_file: bool = False
    folders: list[Path] = field(default_factory=list)
    """The folders that were created for this file."""
    backups: list[Path] = field(default_factory=list)

    def of(self, client: str) -> list[AppliedEdit]:
        """Return the records of the values that `setup` wrote for one client, in order."""
        return [applied for applied in self.applied_edits if applied.client == client]


class Records:
    """The records of all changes that `setup` made to files of clients for this user.

    The caller may change records only inside the context manager `kept`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        folder = places.machine_dir(environment)
        self._file = folder / "setup.json"
        self._lock = folder / "setup.lock"
        self._found: dict[str, Record] = {}
        self.load()

    def load(self) -> None:
        """Read the records from disk.

        Raises:
            ConfigError: The file is not a valid records file.
        """
        try:
            document = json.loads(self._file.read_bytes())
            self._found = {
                path: Record(
                    clients=list(item["clients"]),
                    applied_edits=[
                        AppliedEdit(
                            **{**mark, "path": tuple(mark["path"]), "goes_with": tuple(mark["goes_with"])}
                        )
                        for mark in item["marks"]
                    ],
                    made_file=bool(item["made_file"]),
                    folders=[Path(folder) for folder in item["folders"]],
                    backups=[Path(backup) for backup in item["backups"]],
                )
                for path, item in document[_FORM].items()
            }
        except FileNotFoundError:
            self._found = {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{self._file}, in which setup records its changes, is not valid: {error}",
                value=str(self._file),
                remedy="move the file to another folder; after that, `setup remove` removes the entries "
                "named postroom",
            ) from error

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Hold the lock for changing records and client files; only one process at a time can hold the lock.

        Raises:
            VersionConflict: Another process held the lock for too long.
            ConfigError: The folder cannot be created or written.
        """
        lock = FileLock(self._lock, timeout=PATIENCE.total_seconds(), mode=0o600)
        try:
            self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise VersionConflict(
                "another `postroom setup` is running", remedy="run the command again"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"the folder {self._lock.parent} is not writable: {error}",
                remedy=choose_remedy(error, self._lock),
            ) from error
        try:
            self.load()
            yield
        finally:
            lock.release()

    def get(self, path: Path) -> Record:
        """Return the record of a file, or an empty record if the file was never changed."""
        return self._found.get(str(path)) or Record()

    def put(self, path: Path, record: Record) -> None:
        """Store the record of a file, or delete the stored record if `record` has no clients.

        Raises:
            ConfigError: The records cannot be written.
        """
        if record.clients:
            self._found[str(path)] = record
        else:
            self._found.pop(str(path), None)
        document = {
            _FORM: {
                key: {
                    "clients": record.clients,
                    "marks": [asdict(applied) for applied in record.applied_edits],
                    "made_file": record.made_file,
                    "folders": [str(folder) for folder in record.folders],
                    "backups": [str(backup) for backup in record.backups],
                }
                for key, record in self._found.items()
            }
        }
        try:
            if self._found:
                places.write_private(self._file, json.dumps(document, indent=1))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the file {self._file} cannot be written: {error}",
                value=str(self._file),
                remedy=choose_remedy(error, self._file),
            ) from error

    def pass_on(self, folders: list[Path]) -> None:
        """Assign each created folder to a recorded file, so that the folder is removed with the file.

        Raises:
            ConfigError: The records cannot be written.
        """
        for folder in folders:
            heir = next((path for path in self._found if Path(path).is_relative_to(folder)), None)
            if heir is not None and folder not in self._found[heir].folders:
                self._found[heir].folders.append(folder)
                self.put(Path(heir), self._found[heir])
