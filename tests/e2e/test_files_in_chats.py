"""Files through everything: Telegram and the page, a model and a program, a real browser that shows them."""

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from PIL import Image, ImageOps
from starlette.applications import Starlette

from channels.fake_telegram import PRIVATE, TOKEN, FakeTelegram, message, update
from e2e.browser import PATIENCE, Browser
from e2e.test_web_chat_in_a_browser import said, soon, write
from executors.room import SERVER, OneRunner
from gateway_room import settled
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.chat import InboundStatus
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.clock import SystemClock
from postroom.contracts.runners import Runner
from postroom.dispatch.mailbox import Mailbox
from postroom.executors.command import CommandExecutor
from postroom.gateway.config import GatewayConfig
from postroom.gateway.files import ChatFiles
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.telegram import TelegramAdapter, TelegramOptions
from postroom.gateway.platforms.web import WebAdapter, WebOptions
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.relay import Relay
from postroom.runtime import AgentRuntime, AgentSpec, FixedResolver, OpenAICompatibleModel, ResolvedAgent
from postroom.stores.memory import MemoryRunStores
from runtime.endpoint import FakeEndpoint, chunk

pytestmark = pytest.mark.long

WORD = "the token of the harbour"
INVERTING = """
import os, re, sys
from PIL import Image, ImageOps
asked = sys.stdin.read()
source = re.search(r"- (/.+?) \\(image/", asked)[1]
assert oct(os.stat(os.path.dirname(os.path.dirname(source))).st_mode)[-3:] == "700"
with Image.open(source) as image:
    ImageOps.invert(image.convert("RGB")).save(os.path.join(os.environ["POSTROOM_OUTBOX"], "inverted.png"))
print("Here it is, inverted.")
"""


def photo() -> bytes:
    """A picture of a light at sea."""
    image = Image.new("RGB", (320, 200), (24, 48, 96))
    image.paste((250, 220, 120), (140, 40, 180, 80))
    image.paste((60, 120, 90), (0, 150, 320, 200))
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=95)
    return out.getvalue()


class Harbour:
    """Both channels over one store; who answers is chosen with each opening."""

    def __init__(self, telegram: FakeTelegram, address: str, folder: Path) -> None:
        self.stores = MemoryRunStores()
        self.clock, self.timer = SystemClock(), SystemTimer()
        allow = {"77": PersonRole.OWNER}
        platforms = {
            Platform.TELEGRAM: TelegramOptions(token=TOKEN, allow=allow, base_url=address, poll_seconds=1),
            Platform.WEB: WebOptions(token=WORD, name="Ada"),
        }
        self.config = GatewayConfig(platforms=platforms, drain=timedelta(0))
        self.web = WebAdapter(platforms[Platform.WEB])
        self.adapters = [TelegramAdapter(platforms[Platform.TELEGRAM]), self.web]

    async def all_answered(self, messages: int) -> None:
        """Return when this many messages have their answers."""
        async with asyncio.timeout(PATIENCE):
            while await self.stores.chat.intake_log.counts() != {InboundStatus.DONE: messages}:
                await asyncio.sleep(0)

    @asynccontextmanager
    async def answered_by(self, agent: Any) -> AsyncIterator[None]:
        config, chat = self.config, self.stores.chat
        sessions = Sessions(chat, config, self.clock)
        presenter = StreamingPresenter(config.streaming, sessions, self.adapters, self.clock, self.timer)
        files = ChatFiles(config, chat.files, self.adapters)
        executor = ChatExecutor(agent, presenter, files.of_run)
        mailbox = Mailbox(executor, self.stores, consumer_id="harbour", effects=ChatEffects())
        relay = Relay(self.stores.store, {})
        gateway = Gateway(
            config,
            stores=chat,
            outbox=self.stores.outbox,
            threads=self.stores.threads,
            run_queue=mailbox,
            presenter=presenter,
            relay=relay,
            clock=self.clock,
            timer=self.timer,
        )
        relaying = Tasks("relay")
        await gateway.start()
        relaying.start(relay.serve(asyncio.Event()), name="relay")
        try:
            yield
        finally:
            await gateway.stop()
            await mailbox.aclose(timedelta(0))
            await relaying.close()


@asynccontextmanager
async def served(web: WebAdapter) -> AsyncIterator[str]:
    app = Starlette(routes=list(web.routes()))
    server = uvicorn.Server(
        uvicorn.Config(
            app, port=0, log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=2
        )
    )
    tasks = Tasks("page")
    serving = tasks.start(server.serve(), name="page")
    try:
        await settled(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/chat"
    finally:
        server.should_exit = True
        await asyncio.wait({serving})
        await tasks.close()


def sent_by_telegram(fake: FakeTelegram, number: int, caption: str) -> None:
    fake.files[f"f{number}"] = {"file_path": f"photos/{number}.jpg"}
    fake.contents[f"photos/{number}.jpg"] = photo()
    sizes = [{"file_id": f"f{number}", "width": 320, "height": 200, "file_size": len(photo())}]
    fake.feed(update(number, message=message(number, chat=PRIVATE, photo=sizes, caption=caption)))


def sign_in(window: Browser, address: str) -> None:
    window.open(address, width=1280)
    window.see("document.querySelector('#token').focus()")
    window.ask("Input.insertText", text=WORD)
    window.events.clear()
    window.press("Enter", 13)
    window.wait_for("Page.loadEventFired")
    soon(window, "document.querySelector('#link.up') !== null")


def choose(window: Browser, path: Path) -> None:
    """Choose a file as a person does in the browser's dialog."""
    root = window.ask("DOM.getDocument")["root"]["nodeId"]
    node = window.ask("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    window.ask("DOM.setFileInputFiles", nodeId=node, files=[str(path)])
    soon(window, "document.querySelector('#chosen button') !== null")


SHOWN = "[...document.querySelectorAll('#log .{kind} img')].filter(one => one.naturalWidth === 320).length === {number}"


async def test_a_photo_is_described_changed_and_sent_back_and_the_page_shows_both(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "light.jpg"
    path.write_bytes(photo())
    script = (sys.executable, "-c", INVERTING)
    async with FakeTelegram().serving() as telegram, FakeEndpoint().serving() as endpoint:
        harbour = Harbour(telegram, telegram.url, tmp_path)
        model = await asyncio.to_thread(OpenAICompatibleModel, endpoint.url)
        spec = AgentSpec(model="sees", agent_id="Ada")
        runtime = AgentRuntime(FixedResolver(ResolvedAgent(spec=spec, model=model)))
        command = CommandExecutor(
            OneRunner(Runner(argv=script, cwd="/")),
            folder=tmp_path / "private",
            environment=SERVER,
        )
        words = "A light over a dark sea."
        endpoint.answers += [[chunk(content=words), chunk("stop")] for _ in range(2)]
        async with served(harbour.web) as address:
            async with harbour.answered_by(runtime):
                sent_by_telegram(telegram, 1, "What is this?")
                await settled(lambda: telegram.sent("sendMessage"))
                await asyncio.to_thread(sign_in, browser, address)
                await asyncio.to_thread(choose, browser, path)
                await asyncio.to_thread(write, browser, "What is this?")
                await asyncio.to_thread(soon, browser, SHOWN.format(kind="message", number=1))
                await asyncio.to_thread(
                    soon, browser, "document.querySelectorAll('#log .answer').length === 1"
                )
                await harbour.all_answered(2)
            for body in endpoint.bodies:
                [text, image] = body["messages"][-1]["content"]
                assert text == {"type": "text", "text": "What is this?"}
                assert image["image_url"]["url"].startswith("data:image/jpeg;base64,")
            async with harbour.answered_by(command):
                sent_by_telegram(telegram, 2, "Invert it.")
                await settled(lambda: any(call.files for call in telegram.calls))
                await asyncio.to_thread(soon, browser, "document.querySelector('#link.up') !== null")
                await asyncio.to_thread(choose, browser, path)
                await asyncio.to_thread(write, browser, "Invert it.")
                await asyncio.to_thread(soon, browser, SHOWN.format(kind="answer", number=1))
                assert await asyncio.to_thread(said, browser) == ["What is this?", "Invert it."]
                answers = await asyncio.to_thread(said, browser, "answer")
                assert [one for one in answers if one] == [words, "Here it is, inverted."]
                for width in (1440, 390):
                    await asyncio.to_thread(_fit, browser, width)
                    wide = await asyncio.to_thread(browser.see, "document.documentElement.scrollWidth")
                    assert wide == width
                # Between the two executors no gateway runs: a request of the page at that moment is told so.
                assert [one for one in browser.complaints() if "503" not in one] == []
        [(name, mime, back)] = next(call.files for call in telegram.calls if call.files).values()
        assert (name, mime) == ("inverted.png", "image/png")
        with Image.open(io.BytesIO(back)) as got, Image.open(io.BytesIO(photo())) as source:
            assert got.convert("RGB").tobytes() == ImageOps.invert(source.convert("RGB")).tobytes()
        assert not list((tmp_path / "private").glob("*.files"))
        await model.close()
        await command.close()


def _fit(window: Browser, width: int) -> None:
    window.ask(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )
    window.see("document.getElementById('scroll').scrollTop = 1e6")
