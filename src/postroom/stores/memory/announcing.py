"""The part of the mail port for those who announce letters, over tables in memory; decides nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from postroom.contracts.announcing import Arrival, ClientSession, Nudges
from postroom.contracts.errors import StoreError
from postroom.contracts.mail import Message
from postroom.stores.memory.project_log import MemoryLogWrites
from postroom.stores.memory.tables import Letter, Tables


class MemoryAnnouncingReads:
    """Look-ups over the tables as they are."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def unannounced(self, agent_id: int, *, limit: int) -> list[Arrival]:
        """Return letters of the agent that are neither read, nor recalled, nor announced, oldest first."""
        found = [
            Arrival(
                message_id=message.id,
                seq=letter.seq,
                kind=letter.kind,
                sender_id=message.sender_id,
                sender_name=message.sender_name,
                importance=message.importance,
                broadcast=message.broadcast,
                created_at=message.created_at,
            )
            for letter, message in self._unread(agent_id)
            if letter.announced_at is None
        ]
        return found[:limit]

    def directed_unread(self, agent_id: int) -> tuple[int, int]:
        """Return how many unread letters name the agent with `to`, and the newest's sequence number."""
        found = [
            letter.seq
            for letter, message in self._unread(agent_id)
            if letter.kind == "to" and not message.broadcast
        ]
        return len(found), max(found, default=0)

    def client_session(self, client: str, session_id: str) -> ClientSession | None:
        """Return what is known of a session of this client."""
        return self._tables.announcing.client_sessions.get((client, session_id))

    def with_client_session(self, agent_ids: Sequence[int]) -> set[int]:
        """Return which of these agents a session of some client acts as."""
        return {one.agent_id for one in self._tables.announcing.client_sessions} & set(agent_ids)

    def sessions_seen(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return when a session of some client was last noted to act as each of these agents."""
        seen: dict[int, int] = {}
        for one in self._tables.announcing.client_sessions:
            if one.agent_id in agent_ids:
                seen[one.agent_id] = max(one.bound_at, seen.get(one.agent_id, one.bound_at))
        return seen

    def nudges(self, agent_id: int) -> Nudges:
        """Return what hooks did with the agent's turns."""
        return self._tables.announcing.nudges.get(agent_id) or Nudges()

    def _unread(self, agent_id: int) -> Iterator[tuple[Letter, Message]]:
        for letter in self._tables.letters.where("inbox", agent_id):
            message = self._tables.messages.row(letter.message_id)
            if letter.read_at is None and message.recalled_at is None:
                yield letter, message


class MemoryAnnouncingWrites(MemoryAnnouncingReads, MemoryLogWrites):
    """Look-ups and changes within one transaction."""

    def mark_announced(self, agent_id: int, message_ids: Sequence[int], *, by: str, now: int) -> int:
        """Note that the agent was told of these letters; the first note stays. Return how many were new."""
        letters, new = self._tables.letters, 0
        for message_id in message_ids:
            letter = letters.one("copy", (message_id, agent_id))
            if letter is not None and letter.announced_at is None:
                letters.put((agent_id, letter.seq), replace(letter, announced_at=now, announced_by=by))
                self._tell_delivery("delivery.announced", message_id, agent_id, letter.kind, now, by)
                new += 1
        return new

    def bind_client_session(self, client: str, session_id: str, agent_id: int, now: int) -> None:
        """Note that a session acts as an agent, in place of what was noted before."""
        self._insist_on_its_agent(agent_id)
        session = ClientSession(client=client, session_id=session_id, agent_id=agent_id, bound_at=now)
        self._tables.announcing.client_sessions.put((client, session_id), session)

    def end_client_session(self, client: str, session_id: str) -> None:
        """Forget a session; harmless when it is not known."""
        self._tables.announcing.client_sessions.drop((client, session_id))

    def purge_client_sessions(self, before: int, *, limit: int) -> int:
        """Forget sessions that were bound before an instant, the oldest first; return how many."""
        old = [one for one in self._tables.announcing.client_sessions if one.bound_at < before]
        gone = sorted(old, key=lambda one: (one.bound_at, one.client, one.session_id))[:limit]
        for one in gone:
            self._tables.announcing.client_sessions.drop((one.client, one.session_id))
        return len(gone)

    def set_nudges(self, agent_id: int, nudges: Nudges) -> None:
        """Note what hooks did with an agent's turns."""
        self._insist_on_its_agent(agent_id)
        self._tables.announcing.nudges.put(agent_id, nudges)

    def _insist_on_its_agent(self, agent_id: int) -> None:
        if agent_id not in self._tables.agents:
            raise StoreError("the store refused: there is no such agent", value=agent_id)
