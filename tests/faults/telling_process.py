"""Run as a separate process: kills a server at each statement with which it tells a subscriber of an event.

For each statement in turn, a child process gets a copy of the database, sends the message and is killed by
SIGKILL when it is about to execute the statement, `COMMIT` included. Prints for each child, as JSON, whether
it was killed, whether the cursor had moved, and how many messages there were, before and after one more round.
"""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from postroom.mail.waking.subscription_rounds import SubscriptionRounds
from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite import SqliteStore, connection
from postroom.stores.store import SqlStore
from postroom.testing import ManualClock
from waking_room import PROJECT, Room

MOST = 100


def child(database: Path, work: Callable[[Room], Awaitable[object]], *, killed_at: int = 0) -> bool:
    """Do some work in a forked process; return whether it was killed."""
    pid = os.fork()
    if pid == 0:
        store = SqliteStore.open(database, purpose="test").store
        if killed_at:
            _kill_at(killed_at)
        asyncio.run(_with_room(store, work))
        store.close()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"the child failed: {status}")
    return os.WIFSIGNALED(status)


async def _with_room(store: SqlStore, work: Callable[[Room], Awaitable[object]]) -> None:
    room = Room(MailStore(store), RunStores(store), clock=ManualClock())
    await work(room)
    await room.close()


def _kill_at(number: int) -> None:
    """Kill this process at the write statement with this number."""
    left, begin = number, connection.SqliteTransaction.__init__

    def traced(self: connection.SqliteTransaction, used: sqlite3.Connection) -> None:
        begin(self, used)
        used.set_trace_callback(count)

    def count(text: str) -> None:
        nonlocal left
        left -= not text.startswith(("SELECT", "PRAGMA"))
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    connection.SqliteTransaction.__init__ = traced  # type: ignore[method-assign]


async def prepare(room: Room) -> None:
    """Subscribe an agent to tasks, and add one."""
    await room.people("Ada", "Ben")
    named = {"project_key": PROJECT}
    await room.mail.call("subscribe", {**named, "agent_name": "Ada", "kind": "task_ready"})
    await room.mail.call("add_task", {**named, "agent_name": "Ben", "title": "one"})


async def tell(room: Room) -> None:
    """Make a server read the log once."""
    await SubscriptionRounds(room.mail, room.waker).round()


def state(database: Path) -> tuple[int, int]:
    """Return the cursor, and the number of messages to the subscriber."""
    with closing(sqlite3.connect(database)) as rows:
        [cursor] = rows.execute("SELECT cursor FROM subscriptions").fetchone()
        [count] = rows.execute(
            "SELECT count(*) FROM messages WHERE thread_id LIKE 'subscription-%'"
        ).fetchone()
    return cursor, count


def main(folder: Path) -> None:
    """Print what each child left."""
    first, database, found = folder / "first", folder / "postroom.db", list[object]()
    child(database, prepare)
    database.rename(first)
    begin, _ = state(first)
    for number in range(1, MOST):
        for one in folder.glob("postroom.db*"):
            one.unlink()
        shutil.copy(first, database)
        is_killed = child(database, tell, killed_at=number)
        cursor, messages = state(database)
        child(database, tell)
        found.append([is_killed, cursor > begin, messages, state(database)[1]])
        if not is_killed:
            break
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
