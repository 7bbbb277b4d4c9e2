"""Moves all records of one project to another."""

from collections.abc import Mapping
from typing import Final

from postroom.contracts import progress
from postroom.contracts.mail import Project
from postroom.contracts.merging import ProjectSize
from postroom.stores.codec import record
from postroom.stores.events import EventTables
from postroom.stores.mail import search_index
from postroom.stores.mail.event_recorder import EventRecorder
from postroom.stores.sql_transaction import SqlTransaction

_MOVED: Final = ("agents", "messages", "reservations", "tasks", "tokens", "aliases")
_ON_THE_WAY: Final = "merging"
"""The scope of a log while it is renumbered."""


class MergingReads:
    """Reads the facts that decide whether two projects can be merged."""

    _tx: SqlTransaction

    def project_size(self, project_id: int) -> ProjectSize:
        """Return the size of a project."""
        [row] = self._tx.all("merging.size", {"project_id": project_id})
        return record(ProjectSize, row)

    def shared_agents(self, project_id: int, other_id: int) -> list[str]:
        """Return the names that agents of both projects have, without regard to case."""
        values = {"project_id": project_id, "other_id": other_id}
        return [row[0] for row in self._tx.all("merging.shared_agents", values)]

    def shared_threads(self, project_id: int, other_id: int) -> list[str]:
        """Return the threads that both projects have."""
        values = {"project_id": project_id, "other_id": other_id}
        return [row[0] for row in self._tx.all("merging.shared_threads", values)]

    def has_threads_of_runs(self, prefix: str) -> bool:
        """Return whether a thread of runs has a name with this prefix."""
        values = {"first": prefix, "behind": prefix[:-1] + chr(ord(prefix[-1]) + 1)}
        return self._tx.one("merging.run_thread_between", values) is not None

    def archived_records(self, project_id: int) -> dict[int, list[str]]:
        """Return the records in archive files that mention a project, by the project of the file.

        Each is `<kind>:<id>`: all its own records, and messages of other projects to its agents.
        """
        found: dict[int, list[str]] = {}
        for kind in ("agent", "message", "reservation"):
            for home, number in self._tx.all(f"merging.archived_{kind}", {"project_id": project_id}):
                found.setdefault(home, []).append(f"{kind}:{number}")
        return found


class MergingWrites(MergingReads):
    """Merges projects."""

    _log: EventTables
    _events: EventRecorder

    def merge_projects(
        self, source: Project, target: Project, *, renames: Mapping[int, str], now: int
    ) -> None:
        """Move all records of the source to the target with their ids.

        Only the source's names stay, as aliases.

        The target gets its agents, messages, threads, reservations, tasks, tokens and aliases; a thread that
        both have becomes one. The log with the smaller newest number is appended to the other: a reader that
        continues from a number of either log misses no entry, and may read some again.

        Agents of the source get new names first, by id in `renames`. Their messages show these; entries of
        the log keep the former names.
        """
        self._events.lock([source.id, target.id])
        for agent_id, name in renames.items():  # before the words of the messages move
            values = {"agent_id": agent_id, "name": name, "name_key": name.casefold()}
            self._tx.run("merging.rename_agent", values)
            self._tx.run("merging.rename_sender", values)
        both = {"source": source.id, "target": target.id}
        search_index.move(self._tx, source.id, target.id)
        self._tx.run("merging.join_threads", both)
        self._tx.run("merging.drop_threads", both)
        for done, kind in enumerate(_MOVED):
            progress.tell(f"moving {kind}: steps", done, len(_MOVED))
            self._tx.run(f"merging.move_{kind}", both)
        progress.tell("joining the logs of both projects")
        self._tx.run("merging.drop_project", both)
        for name in (source.human_key, source.slug):
            self._tx.run("mail.add_project_alias", {"human_key": name, "project_id": target.id})
        self._join_logs(f"project:{source.id}", f"project:{target.id}")
        self._events.project_merged(target.id, source.slug, now)

    def _join_logs(self, source: str, target: str) -> None:
        """Append the log with the smaller newest number to the other, so that no number decreases."""
        (source_oldest, source_newest), (oldest, newest) = self._log.bounds(source), self._log.bounds(target)
        if source_newest > newest:
            self._move_log(target, _ON_THE_WAY, source_newest - oldest + 1)
            self._move_log(source, target, 0)
        else:
            self._move_log(source, _ON_THE_WAY, newest - source_oldest + 1)
        self._move_log(_ON_THE_WAY, target, 0)
        self._tx.run("merging.number_log", {"scope": target})

    def _move_log(self, scope: str, into: str, by: int) -> None:
        self._tx.run("merging.move_log", {"scope": scope, "into": into, "by": by})
