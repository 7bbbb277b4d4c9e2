"""The store on one schema of a PostgreSQL database."""

from importlib.util import find_spec

from postroom.contracts.clock import Clock
from postroom.contracts.errors import MissingExtra
from postroom.contracts.leases import IsGone, nobody_is_gone
from postroom.extras import install_command
from postroom.stores.changes import ChangeNotifier
from postroom.stores.store import SqlStore
from postroom.stores.stores import Stores


class PostgresStore(Stores):
    """A store in one PostgreSQL schema, for many processes and machines."""

    @classmethod
    def open(  # noqa: PLR0913 - its options, by name
        cls,
        dsn: str,
        *,
        schema: str = "postroom",
        clock: Clock | None = None,
        readers: int = 4,
        direct_dsn: str = "",
        may_begin: bool = True,
        is_tried: bool = False,
        is_gone: IsGone = nobody_is_gone,
    ) -> "PostgresStore":
        """Connect, upgrade the schema, and start to listen for changes by other processes; the call blocks.

        The default clock is that of the database. If `dsn` belongs to a pooler that gives each transaction a
        different session, `direct_dsn` must be the address of the database itself. With `is_tried`, all
        sessions that the store will ever need are opened as a test. `is_gone` returns whether a server has
        certainly exited; an exited server does not prevent a migration of the schema.

        Raises:
            MissingExtra: The driver is not installed.
            ConfigError: The server rejects the user, does not have this database, or is too old; the schema's
                name is invalid; or `dsn` belongs to such a pooler and `direct_dsn` is missing.
            WrongStore: The schema is missing or empty, and `may_begin` is False; nothing was created.
            StoreHeld: The schema is being copied, or a running server could not continue after a step of the
                schema.
            SchemaTooNew: A newer release wrote the schema.
            StoreReadOnly: The server accepts no writes, or no writes of this user.
            StoreUnavailable: The server does not respond, or a pooler has too few sessions.
        """
        if find_spec("psycopg") is None:
            raise MissingExtra(
                "the driver psycopg for PostgreSQL is not installed",
                value="psycopg",
                remedy=install_command("postgres"),
            )
        # Imported here, so that a store in a file does not need the driver.
        from postroom.stores.postgres.connection import Address
        from postroom.stores.postgres.engine import PostgresEngine

        changes = ChangeNotifier()
        address = Address(dsn=dsn, schema=schema, direct_dsn=direct_dsn)
        engine = PostgresEngine.open(
            address,
            clock=clock,
            readers=readers,
            changes=changes,
            may_begin=may_begin,
            is_tried=is_tried,
            is_gone=is_gone,
        )
        return cls(SqlStore(engine, changes), is_exclusive=False)
