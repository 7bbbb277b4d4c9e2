"""Runs on PostgreSQL: many processes and machines on one database. Needs the extra `postroom[postgres]`."""

from postroom.stores.postgres.live import PostgresLiveChannels
from postroom.stores.postgres.run_stores import PostgresRunStores

__all__ = ["PostgresLiveChannels", "PostgresRunStores"]
