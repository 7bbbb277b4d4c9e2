"""A private note for every running program, so that a later server finds what this one left.

Written before the program is started and removed when none of its processes is left. Blocks: call it outside
of the event loop.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

from postroom.executors.processes.machine import Machine, boot_id, started_at
from postroom.log import get_logger

_LOG = get_logger(__name__)
_RECORD: Final = ".json"
_PROMPT: Final = ".prompt"
_SETTINGS: Final = ".settings"
_FILES: Final = ".files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One program, its owner and its run. Without a pid it was about to be started."""

    instance: str
    server_name: str
    run_id: str
    dispatch_id: str
    boot: str
    owner_pid: int
    owner_started: int
    pid: int | None = None
    started: int = 0

    def leader(self, machine: Machine) -> int | None:
        """Return the program's pid, or None when the pid may be another process's by now."""
        return self.pid if self._is(machine, self.pid, self.started) else None

    def is_owned_by_another(self, machine: Machine) -> bool:
        """Return whether another living server started it."""
        return self.owner_pid != os.getpid() and self._is(machine, self.owner_pid, self.owner_started)

    def _is(self, machine: Machine, pid: int | None, started: int) -> bool:
        if pid is None or not started or self.boot != boot_id():
            return False
        return machine.look(pid) is not None and started_at(pid) == started


class Records:
    """The notes of one server in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Make the folder, readable by its owner alone."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)

    def prompt_file(self, instance: str) -> Path:
        """Return the file for a prompt that is passed by file."""
        return self._path(instance, _PROMPT)

    def settings_folder(self, instance: str) -> Path:
        """Return the folder for settings that a program is given for one run."""
        return self._path(instance, _SETTINGS)

    def files_folder(self, run_id: str) -> Path:
        """Return the folder for the files that came to a run, and for those that it leaves."""
        return self._path(run_id, _FILES)

    def remove_files(self) -> None:
        """Remove the files of runs that an earlier server was executing; call it before any run begins."""
        for folder in self._folder.glob(f"*{_FILES}"):
            shutil.rmtree(folder, ignore_errors=True)

    def write_settings(self, instance: str, files: Mapping[str, bytes], links: Mapping[str, Path]) -> None:
        """Make the folder for settings anew, with files that only their owner can read, and links."""
        folder = self.settings_folder(instance)
        _remove_folder(folder)
        folder.mkdir(mode=0o700)
        for name in (*files, *links):
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            write_private(folder / name, content)
        for name, target in links.items():
            (folder / name).symlink_to(target)

    def begin(self, *, instance: str, server_name: str, run_id: str, dispatch_id: str) -> Record:
        """Note that a program is about to be started."""
        self.prepare()
        record = Record(
            instance=instance,
            server_name=server_name,
            run_id=run_id,
            dispatch_id=dispatch_id,
            boot=boot_id(),
            owner_pid=os.getpid(),
            owner_started=started_at(os.getpid()),
        )
        self._write(record)
        return record

    def has_started(self, record: Record, pid: int) -> None:
        """Note which process the program is."""
        self._write(replace(record, pid=pid, started=started_at(pid)))

    def remove(self, instance: str) -> None:
        """Remove the note, the prompt and the settings of a program; harmless when repeated.

        A note that cannot be removed is logged; the next server finds no process for it and removes it.
        """
        try:
            self._path(instance, _PROMPT).unlink(missing_ok=True)
            _remove_folder(self.settings_folder(instance))
            self._path(instance, _RECORD).unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("command.record_not_removed", reason=str(error))

    def all(self) -> tuple[Record, ...]:
        """Return every note; unreadable ones are skipped and logged."""
        found = []
        for path in sorted(self._folder.glob(f"*{_RECORD}")):
            try:
                found.append(_read(path))
            except FileNotFoundError:
                continue  # removed meanwhile
            except (OSError, ValueError, TypeError) as error:
                _LOG.warning("command.record_unreadable", file=path.name, reason=str(error))
        return tuple(found)

    def _write(self, record: Record) -> None:
        write_private(self._path(record.instance, _RECORD), json.dumps(asdict(record)).encode())

    def _path(self, instance: str, ending: str) -> Path:
        name = hashlib.sha256(instance.encode("utf-8", "replace")).hexdigest()[:32]
        return self._folder / f"{name}{ending}"


def _read(path: Path) -> Record:
    plain = json.loads(path.read_bytes())
    if isinstance(plain, dict) and "house" in plain:  # an earlier version wrote it
        plain["server_name"] = plain.pop("house")
    if not isinstance(plain, dict) or plain.keys() != {one.name for one in fields(Record)}:
        raise ValueError("it is no note of a program")
    numbers = (plain["owner_pid"], plain["owner_started"], plain["started"])
    if not all(isinstance(one, int) for one in numbers) or not isinstance(plain["pid"], int | None):
        raise ValueError("a number in it is none")
    if not all(
        isinstance(plain[name], str) for name in ("instance", "server_name", "run_id", "dispatch_id", "boot")
    ):
        raise ValueError("a text in it is none")
    return Record(**plain)


def _remove_folder(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)  # links in it are removed, not followed


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; an existing one is replaced as a whole."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
