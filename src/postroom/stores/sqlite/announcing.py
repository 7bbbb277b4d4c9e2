"""The part of the mail port for those who announce letters, over one connection; decides nothing."""

import json
import sqlite3
from collections.abc import Sequence

from postroom.contracts.announcing import Arrival, ClientSession, Nudges
from postroom.stores.sqlite.project_log import SqliteLogWrites
from postroom.stores.sqlite.statements import STATEMENTS as SQL


class SqliteAnnouncingReads:
    """Look-ups over one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute

    def unannounced(self, agent_id: int, *, limit: int) -> list[Arrival]:
        """Return letters of the agent that are neither read, nor recalled, nor announced, oldest first."""
        return [
            Arrival(
                message_id=row[0],
                seq=row[1],
                kind=row[2],
                sender_id=row[3],
                sender_name=row[4],
                importance=row[5],
                broadcast=bool(row[6]),
                created_at=row[7],
            )
            for row in self._execute(SQL["unannounced"], (agent_id, limit))
        ]

    def directed_unread(self, agent_id: int) -> tuple[int, int]:
        """Return how many unread letters name the agent with `to`, and the newest's sequence number."""
        count, newest = self._execute(SQL["directed_unread"], (agent_id,)).fetchone()
        return int(count), int(newest)

    def client_session(self, client: str, session_id: str) -> ClientSession | None:
        """Return what is known of a session of this client."""
        row = self._execute(SQL["client_session"], (client, session_id)).fetchone()
        return (
            ClientSession(client=row[0], session_id=row[1], agent_id=row[2], bound_at=row[3]) if row else None
        )

    def with_client_session(self, agent_ids: Sequence[int]) -> set[int]:
        """Return which of these agents a session of some client acts as."""
        asked = json.dumps(list(agent_ids))
        return {row[0] for row in self._execute(SQL["with_client_session"], (asked,))}

    def sessions_seen(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return when a session of some client was last noted to act as each of these agents."""
        asked = json.dumps(list(agent_ids))
        return dict(self._execute(SQL["sessions_seen"], (asked,)).fetchall())

    def nudges(self, agent_id: int) -> Nudges:
        """Return what hooks did with the agent's turns."""
        row = self._execute(SQL["nudges"], (agent_id,)).fetchone()
        return Nudges(held_seq=row[0], told_at=row[1]) if row else Nudges()


class SqliteAnnouncingWrites(SqliteAnnouncingReads, SqliteLogWrites):
    """Look-ups and changes over the writer's connection."""

    def mark_announced(self, agent_id: int, message_ids: Sequence[int], *, by: str, now: int) -> int:
        """Note that the agent was told of these letters; the first note stays. Return how many were new."""
        # One by one: with a list of ids SQLite would go through the whole inbox, however long it is.
        new = 0
        for message_id in message_ids:
            if row := self._execute(SQL["mark_announced"], (message_id, agent_id, now, by)).fetchone():
                self._tell_delivery("delivery.announced", message_id, agent_id, row[0], now, by)
                new += 1
        return new

    def bind_client_session(self, client: str, session_id: str, agent_id: int, now: int) -> None:
        """Note that a session acts as an agent, in place of what was noted before."""
        self._execute(SQL["bind_client_session"], (client, session_id, agent_id, now))

    def end_client_session(self, client: str, session_id: str) -> None:
        """Forget a session; harmless when it is not known."""
        self._execute(SQL["end_client_session"], (client, session_id))

    def purge_client_sessions(self, before: int, *, limit: int) -> int:
        """Forget sessions that were bound before an instant, the oldest first; return how many."""
        return self._execute(SQL["purge_client_sessions"], (before, limit)).rowcount

    def set_nudges(self, agent_id: int, nudges: Nudges) -> None:
        """Note what hooks did with an agent's turns."""
        self._execute(SQL["set_nudges"], (agent_id, nudges.held_seq, nudges.told_at))
