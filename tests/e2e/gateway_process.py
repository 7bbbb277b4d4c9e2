"""A gateway process that tests kill: the real Telegram adapter, a fake agent, stores on disk or a server.

python gateway_process.py <sqlite path> <journal> <api url> <turn ms>

The journal is one file for all processes, a line at a time: `start|end <thread> <run> <text> <pid>`. It ends in good
order when it is sent SIGTERM.
"""

import asyncio
import os
import random
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from postroom.concurrency import SystemTimer
from postroom.contracts.activation import RunActivation
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway.config import DeliveryConfig, GatewayConfig
from postroom.gateway.files import ChatFiles
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.telegram import TelegramAdapter, TelegramOptions
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore

TOKEN = "4711:AAE-very_secret_token"
SECRET = "webhook-secret"
MAILBOX = MailboxConfig(
    lease_ms=2_000,
    lease_renewal_interval=timedelta(milliseconds=500),
    lease_retry_ms=100,
    sweep_interval=timedelta(milliseconds=500),
    poll_interval=timedelta(milliseconds=200),
    default_max_attempts=1_000,
)


class Agent(RunDispatchExecutor):
    """A fake agent: works a while, and answers `re: <what it read>`."""

    def __init__(self, journal: str, turn_ms: int) -> None:
        self._file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._turn_ms = turn_ms
        self._random = random.Random(os.getpid())
        self._timer = SystemTimer()

    async def run(self, activation: RunActivation, sink: Any) -> AgentRunResult:
        texts = [message.text() for message in activation.messages]
        self._note("start", activation, texts)
        await self._timer.sleep(self._random.randint(self._turn_ms // 2, self._turn_ms))
        self._note("end", activation, texts)
        return AgentRunResult(run_id=activation.run_id or "", response="re: " + " | ".join(texts))

    def _note(self, word: str, activation: RunActivation, texts: list[str]) -> None:
        said = "|".join(text.replace(" ", "_") for text in texts)
        line = f"{word} {activation.thread_id} {activation.run_id} {said} {os.getpid()}\n"
        os.write(self._file, line.encode())


def configured(api: str) -> GatewayConfig:
    extra: dict[str, Any] = {"base_url": api, "poll_seconds": 5}
    telegram = TelegramOptions(token=TOKEN, api_key=SECRET, allow={"*": PersonRole.OWNER}, **extra)
    return GatewayConfig(
        platforms={Platform.TELEGRAM: telegram},
        delivery=DeliveryConfig(
            max_attempts=1_000, first_retry=timedelta(milliseconds=100), lease=timedelta(seconds=2)
        ),
        drain=timedelta(milliseconds=200),
    )


async def serve(runs: Any, chat: Any, journal: str, api: str, turn_ms: int) -> None:
    config = configured(api)
    timer, relay, stopping = SystemTimer(), Relay(runs.store, {}), asyncio.Event()
    adapter = TelegramAdapter(config.platforms[Platform.TELEGRAM])
    sessions = Sessions(chat, config, runs.clock)
    presenter = StreamingPresenter(config.streaming, sessions, [adapter], runs.clock, timer)
    files = ChatFiles(config, chat.files, [adapter])
    agent = ChatExecutor(Agent(journal, turn_ms), presenter, files.of_run)
    mailbox = Mailbox(agent, runs, effects=ChatEffects(), config=MAILBOX)
    made = Gateway(
        config,
        stores=chat,
        outbox=runs.outbox,
        threads=runs.threads,
        run_queue=mailbox,
        presenter=presenter,
        relay=relay,
        clock=runs.clock,
        timer=timer,
    )
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with mailbox, made, asyncio.TaskGroup() as group:
        group.create_task(relay.serve(stopping))
        await told.wait()
        stopping.set()
        relay.hint()


def main() -> None:
    place, journal, api, turn_ms = sys.argv[1:]
    store = SqliteStore.open(Path(place), purpose="gateway")
    try:
        asyncio.run(serve(store.runs, store.chat, journal, api, int(turn_ms)))
    finally:
        store.close()


if __name__ == "__main__":
    main()
