"""Run as a separate process: a worker on PostgreSQL whose runs write a line for each step, until it is ended."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.runs.ports import RunStores

CONFIG = MailboxConfig(
    lease_ms=2_000,
    lease_renewal_interval=timedelta(milliseconds=500),
    lease_retry_ms=100,
    sweep_interval=timedelta(milliseconds=200),
    poll_interval=timedelta(milliseconds=100),
)


class Stepping(RunDispatchExecutor):
    """Writes one line for each of its steps, and never ends by itself."""

    def __init__(self, lines: Path) -> None:
        self.lines = lines

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        try:
            while True:
                self._say("step")
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self._say("stopped")
            raise

    def live_registry(self) -> None:
        return None

    def _say(self, word: str) -> None:
        with self.lines.open("a") as lines:
            lines.write(word + "\n")


async def main(dsn: str, schema: str, lines: Path) -> None:
    store = PostgresStore.open(dsn, schema=schema, readers=1)
    async with Mailbox(Stepping(lines), RunStores(store.store), consumer_id="worker", config=CONFIG):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
