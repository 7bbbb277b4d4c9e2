"""The reasoning of a model on the chat page: shown apart from the answer, live and in the history."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2

from channels.http_room import calling
from channels.test_web_chat import FORM, SENT, TOKEN
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.clock import SystemClock
from postroom.contracts.records import replace
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway.config import GatewayConfig, StreamingConfig
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.web import WebAdapter, WebOptions
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.relay import Relay
from postroom.runtime import AgentRuntime, AgentSpec, FixedResolver, OpenAICompatibleModel, ResolvedAgent
from postroom.stores.memory import MemoryRunStores
from runtime.endpoint import END, FakeEndpoint, chunk, fragment
from table_rows import each_row

PAGE = WebOptions(token=TOKEN, name="Ada")
CONFIG = GatewayConfig(platforms={Platform.WEB: PAGE}, drain=timedelta(0))


@asynccontextmanager
async def answered_by(
    endpoint: FakeEndpoint, stores: MemoryRunStores, config: GatewayConfig = CONFIG
) -> AsyncIterator[httpx2.AsyncClient]:
    """Return the browser of a person who signed in to a chat page with this model."""
    web, clock, timer = WebAdapter(PAGE), SystemClock(), SystemTimer()
    model = await asyncio.to_thread(OpenAICompatibleModel, endpoint.url)
    spec = AgentSpec(model="thinks", agent_id="Ada")
    sessions = Sessions(stores.chat, config, clock)
    presenter = StreamingPresenter(config.streaming, sessions, [web], clock, timer)
    executor = ChatExecutor(AgentRuntime(FixedResolver(ResolvedAgent(spec=spec, model=model))), presenter)
    mailbox = Mailbox(executor, stores, consumer_id="harbour", effects=ChatEffects())
    relay = Relay(stores.store, {})
    gateway = Gateway(
        config,
        stores=stores.chat,
        outbox=stores.outbox,
        threads=stores.threads,
        run_queue=mailbox,
        presenter=presenter,
        relay=relay,
        clock=clock,
        timer=timer,
    )
    relaying = Tasks("relay")
    await gateway.start()
    relaying.start(relay.serve(asyncio.Event()), name="relay")
    try:
        async with calling(web) as client:
            await client.post("/chat/sign-in", data={"token": TOKEN}, headers=FORM)
            yield client
    finally:
        await gateway.stop()
        await mailbox.aclose(timedelta(0))
        await relaying.close()


async def answers(client: httpx2.AsyncClient) -> list[tuple[str, str, bool]]:
    """Return the reasoning, the text and whether it is a draft, of each answer that the page shows."""
    entries = (await client.get("/chat/conversations/main")).json()["entries"]
    return [(one["reasoning"], one["text"], one["draft"]) for one in entries if one["kind"] == "answer"]


async def shown(client: httpx2.AsyncClient, *expected: tuple[str, str, bool]) -> None:
    """Return once the page shows exactly these answers."""
    async with asyncio.timeout(60):
        while await answers(client) != list(expected):
            await asyncio.sleep(0)


async def asked(client: httpx2.AsyncClient, text: str) -> None:
    body = {"id": f"message-{text}".replace(" ", "-"), "text": text}
    assert (await client.post("/chat/messages", json=body, headers=SENT)).status_code == 202


WAYS: list[tuple[str, Any]] = [
    ("a field", lambda said: [chunk(reasoning_content=said)]),
    ("tags", lambda said: [chunk(content=f"<think>{said}"), chunk(content="</think>\n")]),
]


@each_row("way, thinks", WAYS)
async def test_reasoning_is_shown_while_it_comes_and_kept_apart_from_the_answer(way, thinks) -> None:
    stores, held, ends = MemoryRunStores(), asyncio.Event(), asyncio.Event()
    thought = "The north light is broken, " * 4 + "so the south one."
    async with FakeEndpoint().serving() as endpoint:
        first, *rest = thinks(thought)
        endpoint.answers = [
            [first, held, *rest, chunk(content="The south light, of the two."), ends, chunk("stop"), END],
            [chunk(content="You are welcome."), chunk("stop"), END],
        ]
        async with answered_by(endpoint, stores) as client:
            await asked(client, "Which light")
            await shown(client, (thought, "", True))
            held.set()
            await shown(client, (thought, "The south light, of the two.", True))
            ends.set()
            await shown(client, (thought, "The south light, of the two.", False))
            await asked(client, "Thank you")
            both = (thought, "The south light, of the two.", False), ("", "You are welcome.", False)
            await shown(client, *both)
            assert "north light is broken" not in str(endpoint.bodies[1]["messages"])
        async with answered_by(endpoint, stores) as client:  # another process
            await shown(client, *both)


async def test_an_answer_that_was_not_streamed_has_the_reasoning_of_all_its_steps() -> None:
    quiet = replace(CONFIG, streaming=StreamingConfig(enabled=False))
    stores = MemoryRunStores()
    async with FakeEndpoint().serving() as endpoint:
        endpoint.answers = [
            [
                chunk(reasoning_content="I need a tool."),
                fragment(id="c1", name="lamp"),
                chunk("tool_calls"),
                END,
            ],
            [chunk(reasoning_content="There is none."), chunk(content="No lamp."), chunk("stop"), END],
        ]
        async with answered_by(endpoint, stores, quiet) as client:
            await asked(client, "Light it")
            await shown(client, ("I need a tool.\n\nThere is none.", "No lamp.", False))


async def test_a_stopped_answer_keeps_the_reasoning_that_was_shown() -> None:
    stores, never = MemoryRunStores(), asyncio.Event()
    thought = "This takes a long time, and longer than anybody likes to wait."
    async with FakeEndpoint().serving() as endpoint:
        endpoint.answers = [[chunk(reasoning_content=thought), never]]
        async with answered_by(endpoint, stores) as client:
            await asked(client, "Count")
            await shown(client, (thought, "", True))
            await client.post("/chat/conversations/main/stop", json={}, headers=SENT)
            await shown(client, (thought, "Stopped.", False))
            never.set()
