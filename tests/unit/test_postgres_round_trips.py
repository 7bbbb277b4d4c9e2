"""How often a writer of PostgreSQL waits for the server's answer: what a run costs on a server far away."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dispatch_room import Counting
from postroom.contracts.activation import RunActivation
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.postgres import PostgresStore

MOST_A_RUN = 8
COMMITS_A_RUN = 2


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what the threads do that are begun within and write."""
    found: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not threading.current_thread().name.startswith("postroom-writer"):
            return
        name = frame.f_code.co_qualname
        if name == "Connection.flush":
            found["round trips"] += 1
        elif name == "Connection.send" and frame.f_locals["text"] == "COMMIT":
            found["commits"] += 1

    threading.setprofile(called)
    try:
        yield found
    finally:
        threading.setprofile(None)


async def test_a_run_takes_two_commits_and_few_round_trips(postgres_dsn: str, a_schema: str) -> None:
    with counted() as found:
        kept = await asyncio.to_thread(PostgresStore.open, postgres_dsn, schema=a_schema)
    mailbox = Mailbox(Counting(), kept.runs)

    async def run() -> None:
        await mailbox.submit_background(RunActivation.new("echo", ["go"]))
        await mailbox.settled()

    try:
        await run()  # statements are prepared at their first use
        found.clear()
        await run()
    finally:
        await mailbox.aclose()
        await asyncio.to_thread(kept.close)
    assert found["commits"] == COMMITS_A_RUN
    assert found["round trips"] <= MOST_A_RUN
