"""The logs of projects over tables in memory; what is told in them is decided in `stores.telling`."""

from collections.abc import Iterator, Sequence
from itertools import islice

from postroom.contracts.project_log import EventKind, Happening, LogBounds, ProjectEvent
from postroom.stores.memory.tables import Tables
from postroom.stores.telling import EventRecorder


class MemoryLogReads:
    """Look-ups over the tables as they are."""

    _tables: Tables

    def project_events(
        self, project_id: int, *, after: int, limit: int, kinds: Sequence[EventKind] = ()
    ) -> list[ProjectEvent]:
        """Return entries after a sequence number, oldest first; those of some kinds, or of all."""
        found = (one for one in self._behind(project_id, after) if not kinds or one.happening.kind in kinds)
        return list(islice(found, limit))

    def log_bounds(self, project_id: int) -> LogBounds:
        """Return what a project's log holds."""
        oldest = self._tables.logs.floors.get(project_id) or 0
        return LogBounds(oldest=oldest, newest=self._tables.newest_number(_series(project_id)))

    def messages_of(self, agent_id: int, message_ids: Sequence[int]) -> tuple[set[int], set[int]]:
        """Return which of these letters the agent wrote, and which of them came to it."""
        known = {message_id: self._tables.messages.get(message_id) for message_id in message_ids}
        written = {number for number, one in known.items() if one is not None and one.sender_id == agent_id}
        copies = self._tables.letters
        return written, {number for number in known if copies.one("copy", (number, agent_id)) is not None}

    def _behind(self, project_id: int, after: int) -> Iterator[ProjectEvent]:
        bounds = self.log_bounds(project_id)
        for seq in range(max(after, bounds.oldest) + 1, bounds.newest + 1):
            yield self._tables.logs.events.row((project_id, seq))


class MemoryLogWrites(MemoryLogReads, EventRecorder):
    """Entries that changes write, undone when the transaction is."""

    def trim_log(self, project_id: int, *, keep: int, limit: int) -> int:
        """Forget the oldest entries beyond the newest `keep`, at most `limit`; return how many."""
        bounds = self.log_bounds(project_id)
        last = min(bounds.newest - max(keep, 1), bounds.oldest + limit)
        for seq in range(bounds.oldest + 1, last + 1):
            self._tables.logs.events.drop((project_id, seq))
        if last <= bounds.oldest:
            return 0
        self._tables.logs.floors.put(project_id, last)
        return last - bounds.oldest

    def _record(self, project_id: int, happening: Happening) -> None:
        seq = self._tables.next_number(_series(project_id))
        event = ProjectEvent(project_id=project_id, seq=seq, happening=happening)
        self._tables.logs.events.insert((project_id, seq), event)

    def _record_of_agents(self, happening: Happening, *, other_id: int | None = None) -> None:
        tables = self._tables
        letter = None if happening.message_id is None else tables.messages.get(happening.message_id)
        named = (happening.agent_id, other_id)
        agents = (tables.agents.get(number) for number in named if number is not None)
        homes = {one.project_id for one in (letter, *agents) if one is not None}
        for project_id in sorted(homes):
            self._record(project_id, happening)

    def _projects_reached(self, message_id: int) -> Sequence[tuple[int, bool]]:
        found: dict[int, bool] = {}
        for letter in self._tables.letters.where("message", message_id):
            home = self._tables.agents.row(letter.agent_id).project_id
            found[home] = found.get(home, True) and letter.kind == "bcc"
        return sorted(found.items())


def _series(project_id: int) -> str:
    return f"events of {project_id}"
