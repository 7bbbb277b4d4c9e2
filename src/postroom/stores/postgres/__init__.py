"""The store on PostgreSQL, for many processes and machines; requires the extra `postroom[postgres]`."""

from postroom.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
