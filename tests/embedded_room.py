"""Shared by tests of the library: where they open it, work that answers at once, and waits for a run."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from machine import PATIENCE
from postroom.dispatch.config import MailboxConfig
from postroom.embedded.handle import RunHandle, State
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Run

Open = Callable[..., AbstractAsyncContextManager[Mailbox]]
SOON = MailboxConfig(default_retry_delay_ms=0, drain_grace=timedelta(seconds=5))


def on(*kinds: str) -> pytest.MarkDecorator:
    """Have a test run on these kinds of databases in turn; one in memory ends with its mailbox."""
    return pytest.mark.parametrize("database", kinds, indirect=True)


both_engines = on("sqlite", "postgres")
"""For a test whose outcome locks, types, isolation or a lost connection decide; the others run in memory."""


@dataclass(frozen=True)
class Database:
    """Where a database is, and a way past the library into its rows, as no program goes."""

    url: str
    schema: str

    def run(self, statement: str) -> list[Any]:
        """Run one statement."""
        if self.url.startswith("sqlite"):
            path = self.url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path, isolation_level=None)) as database:
                return database.execute(statement).fetchall()
        with psycopg.connect(self.url, autocommit=True) as session:
            session.execute(f"SET search_path TO {self.schema}")
            done = session.execute(statement.encode())
            return done.fetchall() if done.description else []


async def echo(run: Run) -> str:
    """Return the input."""
    return f"you said {run.text}"


async def in_state(handle: RunHandle, state: State) -> None:
    """Return when the run is in this state."""
    async with asyncio.timeout(PATIENCE):
        while (await handle.status()).state is not state:
            await asyncio.sleep(0)


async def answer_open_question(handle: RunHandle, text: str = "", **more: Any) -> str:
    """Answer the question that is open now, and return its id."""
    question_id = (await handle.status()).question_id
    assert question_id is not None
    await handle.answer(text, question_id=question_id, **more)
    return question_id


async def asking(handle: RunHandle) -> RunHandle:
    """Return a run when it has a question or sleeps."""
    await in_state(handle, State.WAITING)
    return handle


async def told(events: AsyncIterator[Any]) -> list[tuple[str, str]]:
    """Return the type and the text of each event."""
    return [(event.type, event.text) async for event in events]


async def texts(mailbox: Mailbox, thread: str = "t") -> list[str]:
    """Return the stored records of a conversation."""
    return [message.text() for message in await mailbox.stores.threads.load_messages(thread) or ()]
