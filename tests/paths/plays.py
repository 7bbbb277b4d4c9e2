"""The paths: each is warmed by one pass, and played once while the trace counts."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

from channels.fake_telegram import TOKEN, FakeTelegram, message, update
from dispatch_room import done
from executors.room import Room, script
from gateway_room import Agent
from paths.tracing import Trace
from postgres_server import running_postgres
from postroom import Mailbox, Run
from postroom.app.config import Settings
from postroom.app.wiring import Application
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.agent_events import TextDelta
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.clock import SystemClock
from postroom.contracts.records import replace
from postroom.dispatch import mailbox as dispatch
from postroom.dispatch.config import MailboxConfig
from postroom.gateway.config import GatewayConfig
from postroom.gateway.files import ChatFiles
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.telegram import TelegramAdapter, TelegramOptions
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from work_room import SLUG, WorkRoom

Play = Callable[[Trace, Path], Awaitable[None]]
PATIENCE = 120.0


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition until it holds; the polls are not part of a path.

    Raises:
        TimeoutError: It did not hold within `PATIENCE` seconds.
    """
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.05)


async def settled() -> None:
    """Give what follows a visible effect the time to happen; late calls would be missed by the count, and fail nothing."""
    await asyncio.sleep(1)


async def _run(trace: Trace, url: str) -> None:
    async def work(run: Run) -> str:
        return "ok"

    async with Mailbox.open(url, work) as mailbox:
        for number in range(5):
            await (await mailbox.enqueue(f"warm {number}", "hi")).result(timeout=PATIENCE)
        await settled()
        with trace.counting():
            await mailbox.enqueue("counted", "hi")
            await settled()


async def run(trace: Trace, folder: Path) -> None:
    """A run of the library on SQLite, from `enqueue` to its stored answer, which nobody awaits."""
    await _run(trace, f"sqlite:///{folder}/p.db")


async def run_on_postgres(trace: Trace, folder: Path) -> None:
    """The same run on PostgreSQL."""
    with running_postgres() as dsn:
        await _run(trace, dsn)


async def woken(trace: Trace, folder: Path) -> None:
    """A message to an agent with a program, until the program's answer is in the sender's inbox."""
    project = folder / "project"
    project.mkdir()
    app = await asyncio.to_thread(Application.open, Settings(data_dir=folder))
    async with app.at_work():
        await app.agents.start()
        call = app.mail.call
        await call("ensure_project", {"human_key": str(project)})
        for name in ("Ada", "Bo"):
            agent = {"project_key": str(project), "program": "x", "model": "y", "name": name}
            await call("register_agent", agent)
        runner = json.dumps({"kind": "command", "argv": ["echo", "done"], "cwd": str(project)})
        await app.mail.set_runner(str(project), "Bo", runner)

        def answers() -> int:
            with contextlib.closing(
                sqlite3.dbapi2.connect(f"file:{folder}/postroom.db?mode=ro", uri=True)
            ) as looked:
                return looked.execute("SELECT count(*) FROM messages").fetchone()[0] // 2

        async def answered(number: int) -> None:
            await call(
                "send_message",
                {
                    "project_key": str(project),
                    "sender_name": "Ada",
                    "to": ["Bo"],
                    "subject": "s",
                    "body_md": "b",
                },
            )
            await until(lambda: answers() >= number)
            await settled()

        await answered(1)
        with trace.counting():
            await answered(2)


class _Streams(Agent):
    """An agent that streams three pieces, slowly enough for a draft."""

    async def execute(self, activation, sink):  # type: ignore[no-untyped-def]
        pieces = ("Hello, this is a longish answer ", "that is streamed in a few pieces ", "and then ends.")
        for words in pieces:
            await sink.emit(TextDelta(delta=words))
            await asyncio.sleep(0.9)
        return done(activation, "".join(pieces))


async def telegram(trace: Trace, folder: Path) -> None:
    """A message in a chat that has one already, until its streamed answer stands."""
    store = await asyncio.to_thread(SqliteStore.open, folder / "p.db")
    fake = FakeTelegram()
    async with fake.serving():
        owner = {"77": PersonRole.OWNER}
        platform = TelegramOptions(token=TOKEN, allow=owner, base_url=fake.url)
        config = GatewayConfig(platforms={Platform.TELEGRAM: platform}, drain=timedelta(0))
        channel, clock, timer = TelegramAdapter(platform), SystemClock(), SystemTimer()
        relay, sessions = Relay(store.runs.store, {}), Sessions(store.chat, config, clock)
        presenter = StreamingPresenter(config.streaming, sessions, [channel], clock, timer)
        files = ChatFiles(config, store.chat.files, [channel])
        mailbox = dispatch.Mailbox(
            ChatExecutor(_Streams(), presenter, files.of_run),
            store.runs,
            consumer_id="g",
            effects=ChatEffects(),
            timer=timer,
            config=MailboxConfig(drain_grace=timedelta(0)),
        )
        gateway = Gateway(
            config,
            stores=store.chat,
            outbox=store.runs.outbox,
            threads=store.runs.threads,
            run_queue=mailbox,
            presenter=presenter,
            relay=relay,
            clock=clock,
            timer=timer,
            store=store.runs.store,
        )
        await gateway.start()
        tasks = Tasks("relay")
        tasks.start(relay.serve(asyncio.Event()), name="relay")
        books = sqlite3.dbapi2.connect(folder / "p.db")  # statements of the polls are not counted

        async def answered(number: int) -> None:
            fake.feed(update(number, message=message(number, "hi")))

            def is_whole() -> bool:
                shown = sum("and then ends" in shown["text"] for shown in fake.messages.values())
                [(ended,)] = books.execute("SELECT count(*) FROM inbound_messages WHERE status = 'done'")
                return shown == ended == number

            await until(is_whole)
            await settled()

        await answered(1)
        with trace.counting():
            await answered(2)
        books.close()
        await gateway.stop()
        await mailbox.aclose(timedelta(0))
        await tasks.close()
    await asyncio.to_thread(store.close)


async def _page(trace: Trace, folder: Path, *, of_run: bool) -> None:
    clock = ManualClock()
    store = await asyncio.to_thread(SqliteStore.open, folder / "p.db", clock=clock)
    room = WorkRoom(store, store.runs, clock)
    await room.people("Ada", "Bo", runners=("Bo",))
    await room.send("Ada", "Bo")
    await room.turn()
    works = await room.operator.works(SLUG)
    address = f"/p/{SLUG}/runs/{works[0].run_id}" if of_run else f"/p/{SLUG}"
    async with room.browser() as browser:
        (await browser.get(address)).raise_for_status()
        await settled()
        # On a busy machine, the mailbox would look for work during the count.
        await room.runs.mailbox.aclose(timedelta(0))
        with trace.counting():
            answer = await browser.get(address)
        answer.raise_for_status()


async def control_room(trace: Trace, folder: Path) -> None:
    """The page of a project that has one run, from its route to HTML."""
    await _page(trace, folder, of_run=False)


async def run_page(trace: Trace, folder: Path) -> None:
    """The page of a run, from its route to HTML."""
    await _page(trace, folder, of_run=True)


async def command(trace: Trace, folder: Path) -> None:
    """A run of a program that begins, from the executor's call to its return."""
    room = Room(folder, script("tell('answer')\n"))
    await room.run()
    asked = await room.activation(run="r2")
    begins = replace(asked, control=replace(asked.control, beginning=True))
    with trace.counting():
        await room.executor.run(begins, room.sink)
    await room.executor.close()


PLAYS: Mapping[str, Play] = {
    "run": run,
    "run on PostgreSQL": run_on_postgres,
    "woken message": woken,
    "Telegram message": telegram,
    "control room": control_room,
    "run page": run_page,
    "command run": command,
}
