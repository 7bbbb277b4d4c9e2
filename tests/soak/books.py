"""Compares the confirmations of callers with the database of a stopped server."""

import asyncio
import json
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from postroom import testing
from postroom.contracts.chat import INBOUND_ID
from postroom.contracts.errors import StoreHeld
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite import SqliteStore
from soak.callers import Asked

STILL_HELD = 10.0
Rows = Any
"""A connection of either driver: `execute(statement)` gives rows."""
PLATFORMS = {"telegram": "telegram", "webhook": "webhook", "api": "api_server"}


@dataclass
class Findings:
    """The faults, by kind: `lost` was taken and is not there, `doubled` is there or was answered twice, `silent` was
    taken and has neither an answer nor a reason, `history` contradicts itself in the database."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        for kind, found in vars(self).items():
            yield from (f"{kind}: {one}" for one in found)

    def __str__(self) -> str:
        return ", ".join(f"{len(found)} {kind}" for kind, found in vars(self).items())


@dataclass(frozen=True)
class Postgres:
    """A schema of a PostgreSQL."""

    dsn: str
    schema: str

    async def store(self) -> PostgresStore:
        """Open the store."""
        return await asyncio.to_thread(PostgresStore.open, self.dsn, schema=self.schema, readers=1)

    def rows(self) -> Rows:
        """Open the database for reading."""
        return psycopg.connect(self.dsn, options=f"-c search_path={self.schema}", autocommit=True)


@dataclass(frozen=True)
class Sqlite:
    """A file."""

    path: Path

    async def store(self) -> SqliteStore:
        """Open the store."""
        return await opened(self.path)

    def rows(self) -> Rows:
        """Open the database for reading."""
        return sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)


async def look(database: Sqlite | Postgres, asked: Sequence[Asked]) -> tuple[Findings, Counter[str]]:
    """Compare while work is open; return the faults and the number of chat messages in each state."""
    found = Findings()
    store = await database.store()
    try:
        found.history += await testing.check(store.runs)
    finally:
        await asyncio.to_thread(store.close)
    with closing(database.rows()) as rows:
        found.history += _gaps(rows)
        _compare_mail(rows, asked, found)
        states = _compare_chats(rows, asked, found)
    return found, states


async def opened(database: Path) -> SqliteStore:
    """Open the database of a server that was killed; a program that it was about to start holds it a moment longer.

    Raises:
        StoreHeld: Another process has it.
    """
    until = time.monotonic() + STILL_HELD
    while True:
        try:
            return await asyncio.to_thread(SqliteStore.open, database, purpose="soak")
        except StoreHeld:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)


def compare_answers(asked: Iterable[Asked], found: Findings) -> None:
    """When all is done: each question that was taken has one answer, which is its own, or a reason why not."""
    for one in asked:
        if not one.is_accepted:
            found.silent.append(f"{one.nonce} was never taken")
        elif not one.is_over:
            found.silent.append(f"{one.nonce} has neither an answer nor a reason")
        if one.heard.unmarked > 1:
            found.doubled.append(f"{one.nonce} was answered {one.heard.unmarked} times: {one.heard.texts}")
        for text in one.heard.texts.values():
            if missing := [name for name in one.wanted if name not in text.split()]:
                found.lost.append(f"the answer to {one.nonce} does not know {missing}: {text!r}")


def _gaps(rows: Rows) -> Iterator[str]:
    """Each log and each inbox counts from 1 without a gap, and names each message once."""
    counted = "SELECT {of}, min(seq), max(seq), count(*) FROM {table} GROUP BY {of}"
    for table, of in (("event_scopes", "scope"), ("recipients", "agent_id")):
        for name, first, last, number in rows.execute(counted.format(table=table, of=of)):
            if (first, last) != (1, number):
                yield f"{table} of {name}: {number} entries from {first} to {last}"
    told = Counter(
        json.loads(payload)["message_id"]
        for (payload,) in rows.execute("SELECT payload FROM events WHERE event_kind = 'message.sent'")
    )
    there = {number for (number,) in rows.execute("SELECT id FROM messages")}
    yield from (f"message {one} is there and was never told of" for one in there - told.keys())
    yield from (f"message {one} was told of and is not there" for one in told.keys() - there)
    yield from (f"message {one} was told of {times} times" for one, times in told.items() if times > 1)
    alone = "SELECT count(*) FROM messages WHERE id NOT IN (SELECT message_id FROM recipients)"
    if number := rows.execute(alone).fetchone()[0]:
        yield f"{number} messages are in nobody's inbox"


def _compare_mail(rows: Rows, asked: Iterable[Asked], found: Findings) -> None:
    """A message that was confirmed to an agent is stored under that id, once."""
    stored: dict[str, list[str]] = defaultdict(list)
    for number, subject in rows.execute("SELECT id, subject FROM messages WHERE body_md LIKE 'Say %'"):
        stored[subject].append(str(number))
    for one in asked:
        ids = stored.get(one.nonce, [])
        if one.channel in PLATFORMS:
            continue
        if one.is_accepted and one.stored_as not in ids:
            found.lost.append(f"message {one.stored_as} ({one.nonce}) was taken and is not there")
        if len(ids) > 1:
            found.doubled.append(f"{one.nonce} is there as messages {ids}")


def _compare_chats(rows: Rows, asked: Sequence[Asked], found: Findings) -> Counter[str]:
    """An accepted chat message is stored once, and is queued, running, finished or rejected."""
    kept: dict[str, list[tuple[int, str, str | None]]] = defaultdict(list)
    columns = "SELECT inbound_id, status, thread_id, body FROM inbound_messages"
    for inbound_id, status, thread_id, body in rows.execute(columns):
        text = json.loads(body)["text"]
        kept[text.removeprefix("Say ").strip()].append((inbound_id, status, thread_id))
    of_chats = [one for one in asked if one.channel in PLATFORMS]
    states: Counter[str] = Counter()
    open_work = _OpenWork(rows)
    for one in of_chats:
        held = kept.pop(one.nonce, [])
        if len(held) > 1:
            found.doubled.append(f"{one.nonce} is kept as {held}")
        if not held and one.is_accepted:
            found.lost.append(f"{one.nonce} was taken and is not kept")
        for inbound_id, status, thread_id in held:
            state = open_work.state(inbound_id, status, thread_id)
            states[state] += 1
            if state == "in nobody's hands":
                found.lost.append(f"{one.nonce} (inbound {inbound_id}) is {status} and {state}")
            if state == "queued" and one.is_over:
                found.history.append(f"{one.nonce} (inbound {inbound_id}) has its answer and is queued")
    found.history += [f"{text!r} is kept and was never asked" for text in kept]
    states["accepted"] = sum(states.values())
    return states


class _OpenWork:
    """Where messages are that were handed over: waiting on a thread, in a run that is open, or in an answer."""

    def __init__(self, rows: Rows) -> None:
        self._waiting = set(rows.execute("SELECT thread_id, pending_id FROM pending_messages"))
        # What a run has come to is kept a moment before its dispatch is acknowledged and its answer is queued.
        opened = {run_id for (run_id,) in rows.execute("SELECT run_id FROM run_dispatches WHERE is_open = 1")}
        opened |= {run_id for (run_id,) in rows.execute("SELECT run_id FROM runs WHERE status = 'waiting'")}
        self._read = set()
        bodies = "SELECT run_id, thread_id, body FROM runs WHERE thread_id IN (SELECT thread_id FROM inbound_messages)"
        for run_id, thread_id, body in rows.execute(bodies):
            read = (json.loads(body).get("input") or {}).get("trigger_message_ids") or ()
            self._read |= {(thread_id, message_id) for message_id in read if run_id in opened}
        payloads = "SELECT payload FROM outbox WHERE status IN ('pending', 'claimed')"
        self._answered = {
            inbound_id
            for (payload,) in rows.execute(payloads)
            for inbound_id in json.loads(payload).get("inbound_ids") or ()
        }

    def state(self, inbound_id: int, status: str, thread_id: str | None) -> str:
        """Return the position of a message."""
        if status in ("done", "rejected", "failed", "retracted"):
            return "finished" if status == "done" else "rejected"
        name = (thread_id, f"{INBOUND_ID}{inbound_id}")
        if status == "waiting" or name in self._waiting:
            return "queued"
        if inbound_id in self._answered:
            return "running"  # its answer is on its way
        return "running" if name in self._read else "in nobody's hands"
