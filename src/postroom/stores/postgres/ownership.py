"""The right to write to a schema: any number of processes share it, or one has it alone for a copy.

Every connection that writes holds a session lock from its start to its end. A process that has lost its
connections, and finds that the schema is being copied, stops writing. Leases, not these locks, divide the
work among the servers that share a schema.
"""

from dataclasses import replace
from typing import Final

from postroom.contracts.errors import StoreHeld, StoreUnavailable
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.postgres.errors import HELD_UP
from postroom.stores.postgres.sql_transaction import lock_number

_NOTICED: Final = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
"""Makes the server notice within a minute that the holder's machine is gone, and free the lock."""
_LOCK: Final = {
    True: "SELECT pg_advisory_lock($1::bigint)",
    False: "SELECT pg_advisory_lock_shared($1::bigint)",
}
_USED: Final = {True: "in use by another process", False: "being copied"}
_HOLDER: Final = """
SELECT coalesce(host(a.client_addr), 'the same machine'),
       to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
  FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND ((CAST(CAST(l.classid AS text) AS bigint) << 32) | CAST(CAST(l.objid AS text) AS bigint)) = $1::bigint
 LIMIT 1
"""


class Ownership:
    """Opens the connections over which a process writes to a schema."""

    def __init__(self, address: Address, *, alone: bool = False) -> None:
        self.address = address
        self._alone = alone

    def connect(self, number: int) -> Connection:
        """Connect for the writer with this number; a former owner's connection gets a moment to end.

        Raises:
            StoreHeld: Another process has the schema. ConfigError, StoreUnavailable: The connection failed.
        """
        if self.address.direct_dsn:
            return Connection(self.address)
        address = replace(self.address, settings={**_NOTICED, **self.address.settings})
        connection = Connection(address)
        try:
            self._lock(connection, lock_number(f"postroom writes {address.schema} {number}"))
        except BaseException:
            connection.close()
            raise
        return connection

    def _lock(self, connection: Connection, key: int) -> None:
        try:
            connection.send(_LOCK[self._alone], (key,))
            connection.wait()
        except StoreUnavailable as error:
            if error.details != HELD_UP:
                raise
            raise self._held(connection, key) from error

    def _held(self, connection: Connection, key: int) -> StoreHeld:
        found = connection.send(_HOLDER, (key,))
        connection.wait()
        where, since = found.rows[0] if found.rows else ("somewhere", "a moment ago")
        return StoreHeld(
            f"the schema {self.address.schema} is {_USED[self._alone]} (from {where}, since {since})",
            value=self.address.schema,
            details={"from": where, "since": since},
        )
