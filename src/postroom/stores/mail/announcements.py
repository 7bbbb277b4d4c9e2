"""What recipients were told of, and which agent a client's session acts as."""

from collections.abc import Sequence
from operator import itemgetter

from typing_extensions import override

from postroom.contracts.announcing import AnnouncingWrites, Arrival, ClientSession, Nudges
from postroom.stores.mail import rows
from postroom.stores.mail.part import Part


class Announcements(Part, AnnouncingWrites):
    """Messages to be announced, client sessions, and what hooks said to agents."""

    @override
    def unannounced(self, agent_id: int, *, limit: int) -> list[Arrival]:
        found = self._tx.all("mail.unannounced", {"agent_id": agent_id, "limit": limit})
        return [rows.arrival(row) for row in found]

    @override
    def directed_unread(self, agent_id: int) -> tuple[int, int]:
        count, newest = rows.written(self._tx.one("mail.directed_unread", {"agent_id": agent_id}))
        return int(count), int(newest)

    @override
    def client_session(self, client: str, session_id: str) -> ClientSession | None:
        row = self._tx.one("mail.client_session", {"client": client, "session_id": session_id})
        return (
            ClientSession(client=row[0], session_id=row[1], agent_id=row[2], bound_at=row[3]) if row else None
        )

    @override
    def with_client_session(self, agent_ids: Sequence[int]) -> set[int]:
        return set(map(itemgetter(0), self._tx.all("mail.with_client_session", {"ids": agent_ids})))

    @override
    def sessions_seen(self, agent_ids: Sequence[int]) -> dict[int, int]:
        return {row[0]: row[1] for row in self._tx.all("mail.sessions_seen", {"ids": agent_ids})}

    @override
    def nudges(self, agent_id: int) -> Nudges:
        row = self._tx.one("mail.nudges", {"agent_id": agent_id})
        return Nudges(held_seq=row[0], notified_at=row[1]) if row else Nudges()

    @override
    def mark_announced(self, agent_id: int, message_ids: Sequence[int], *, by: str, now: int) -> int:
        # One by one: with a list of ids SQLite would go through the whole inbox, however long it is.
        new = 0
        for message_id in message_ids:
            self._events.lock_concerned(message_id, agent_id)
            values = {"message_id": message_id, "agent_id": agent_id, "now": now, "by": by}
            if row := self._tx.one("mail.mark_announced", values):
                self._events.delivery("delivery.announced", message_id, agent_id, row[0], now, by)
                new += 1
        return new

    @override
    def bind_client_session(self, client: str, session_id: str, agent_id: int, now: int) -> None:
        values = {"client": client, "session_id": session_id, "agent_id": agent_id, "now": now}
        self._tx.run("mail.bind_client_session", values)

    @override
    def end_client_session(self, client: str, session_id: str) -> None:
        self._tx.run("mail.end_client_session", {"client": client, "session_id": session_id})

    @override
    def purge_client_sessions(self, before: int, *, limit: int) -> int:
        return self._tx.changed("mail.purge_client_sessions", {"before": before, "limit": limit})

    @override
    def set_nudges(self, agent_id: int, nudges: Nudges) -> None:
        values = {"agent_id": agent_id, "held_seq": nudges.held_seq, "notified_at": nudges.notified_at}
        self._tx.run("mail.set_nudges", values)
