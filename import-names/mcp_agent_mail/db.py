"""The database, for callers of `mcp_agent_mail.db`: one store per process, and SQLAlchemy sessions.

On SQLite, a session never checkpoints the database, because only the writer may. A session waits for the
writer instead of failing.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from mcp_agent_mail.config import Settings, get_settings
from postroom.app.wiring import Application

__all__ = ["ensure_schema", "get_session", "reset_database_state"]

_open: dict[str, Application] = {}
_opening = threading.Lock()
_engines: dict[str, AsyncEngine] = {}

_PRAGMAS = (
    "PRAGMA busy_timeout = 10000",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 0",
)


def shared_application() -> Application:
    """Return this process's application. The first call after a reset opens it.

    Raises:
        StoreHeld: Another process owns the database. Use that process's server instead.
    """
    with _opening:
        if "application" not in _open:
            _open["application"] = Application.open(get_settings(), purpose="mcp_agent_mail")
        return _open["application"]


async def ensure_schema() -> None:
    """Open the database, and migrate it to the newest schema if necessary."""
    await asyncio.to_thread(shared_application)


@asynccontextmanager
async def get_session() -> AsyncIterator[AsyncSession]:
    """Yield a SQLAlchemy session on the database. The end of the block rolls back uncommitted changes."""
    application = (
        _open["application"] if "application" in _open else await asyncio.to_thread(shared_application)
    )
    identity = application.store.store.identity
    if identity not in _engines:
        _engines[identity] = _engine(application.settings)
    async with async_sessionmaker(_engines[identity], expire_on_commit=False)() as session:
        yield session


def reset_database_state() -> None:
    """Close the database. The next use opens the database that the settings name at that time."""
    _engines.clear()
    if application := _open.pop("application", None):
        application.close()


def _engine(settings: Settings) -> AsyncEngine:
    return _postgres(settings) if settings.database_url else _sqlite(settings)


def _postgres(settings: Settings) -> AsyncEngine:
    import psycopg  # imported here because only PostgreSQL needs it

    async def connect() -> Any:
        connection = await psycopg.AsyncConnection.connect(settings.database_url)
        await connection.execute("SELECT set_config('search_path', %s, false)", (settings.database_schema,))
        await connection.commit()
        return connection

    return create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool)


def _sqlite(settings: Settings) -> AsyncEngine:
    engine = create_async_engine(f"sqlite+aiosqlite:///{settings.database}", poolclass=NullPool)

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    return engine
