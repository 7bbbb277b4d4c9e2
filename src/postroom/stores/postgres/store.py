"""The store on one schema of a PostgreSQL database."""

from importlib.util import find_spec

from postroom.contracts.clock import Clock
from postroom.contracts.errors import MissingExtra
from postroom.contracts.leases import IsGone, nobody_is_gone
from postroom.stores.changes import ChangeNotifier
from postroom.stores.store import SqlStore
from postroom.stores.stores import Stores


class PostgresStore(Stores):
    """Everything in one schema of a database, for many processes and machines."""

    @classmethod
    def open(  # noqa: PLR0913 - every choice by name
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
        """Connect, bring the schema to the newest state and begin to hear other processes. Blocks.

        The store goes by the database's clock, unless `clock` is given. Where `dsn` is that of a pooler which
        gives each transaction another session, `direct_dsn` is the database's own: other processes are heard
        there. With `is_tried` every session that it will ever want is asked for now. A server that `is_gone`
        says of that it has surely ended is in the way of no step of the schema.

        Raises:
            MissingExtra: the driver is not installed.
            ConfigError: the server refuses the user, has no such database or is too old; or the schema's name
                is none; or `dsn` is such a pooler's and there is no `direct_dsn`.
            WrongStore: the schema is missing or empty, and not `may_begin`; nothing was made.
            StoreHeld: it is being copied; or a server is up that could not go on after a step of the schema.
            SchemaTooNew: a newer postroom wrote the schema.
            StoreReadOnly: the server takes no writes, or none of this user.
            StoreUnavailable: it does not answer, or a pooler has too few sessions.
        """
        if find_spec("psycopg") is None:
            raise MissingExtra(
                "the driver psycopg for PostgreSQL is not installed",
                value="psycopg",
                remedy="pip install 'postroom[postgres]' (in a clone: make dev)",
            )
        # Here, so that whoever keeps everything in a file does without the driver.
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
