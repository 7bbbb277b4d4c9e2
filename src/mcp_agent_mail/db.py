"""The database under its import names: one store a process, and SQLAlchemy sessions on the same file.

Sessions never checkpoint (the writer alone may) and wait for the writer instead of failing.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp_agent_mail.config import get_settings
from postroom.app.logs import route_to_logging
from postroom.app.wiring import Application
from postroom.contracts.errors import MissingExtra

try:
    from sqlalchemy import event
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
    from sqlalchemy.pool import NullPool
except ImportError as error:
    raise MissingExtra(
        f"the import names need {error.name}, which is not installed",
        value=error.name,
        remedy='pip install "postroom[agent-mail]"',
    ) from error

__all__ = ["ensure_schema", "get_session", "reset_database_state"]

_open: dict[str, Application] = {}
_opening = threading.Lock()
_engines: dict[str, AsyncEngine] = {}

_PRAGMAS = (
    "PRAGMA busy_timeout = 10000",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 0",
)


def shared_house() -> Application:
    """Return this process's house, opened by the first call after a reset.

    Raises:
        StoreHeld: another process owns the database; use that server instead.
    """
    with _opening:
        if "house" not in _open:
            route_to_logging()
            _open["house"] = Application.open(get_settings(), purpose="mcp_agent_mail")
        return _open["house"]


async def ensure_schema() -> None:
    """Open the database and bring it to the newest schema; harmless when that is done."""
    await asyncio.to_thread(shared_house)


@asynccontextmanager
async def get_session() -> AsyncIterator[AsyncSession]:
    """Give a SQLAlchemy session on the database; what is not committed is undone at the end."""
    house = _open["house"] if "house" in _open else await asyncio.to_thread(shared_house)
    address = f"sqlite+aiosqlite:///{house.store.path}"
    if address not in _engines:
        _engines[address] = _engine(address)
    async with async_sessionmaker(_engines[address], expire_on_commit=False)() as session:
        yield session


def reset_database_state() -> None:
    """Close the database; the next use opens the one that the settings name then."""
    _engines.clear()
    if house := _open.pop("house", None):
        house.close()


def _engine(address: str) -> AsyncEngine:
    engine = create_async_engine(address, poolclass=NullPool)

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    return engine
