"""Between a gateway and its server: addresses, life cycle, and requests of the operator."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from channels.fake_speech import KEY, FakeSpeech, sound
from channels.fake_telegram import PRIVATE, TOKEN, FakeTelegram, message, update
from fake_channel import FakeChannel
from gateway_room import CONFIG, Agent, Room, settled
from postroom.app.chats import Chats
from postroom.app.config import Settings
from postroom.app.gateway_answering import Missing
from postroom.app.gateway_config import load_gateway
from postroom.app.gateway_service import GatewayService
from postroom.app.gateway_wiring import ChatService, open_paths
from postroom.app.undelivered import UndeliveredService
from postroom.concurrency import Tasks
from postroom.contracts import errors
from postroom.contracts.activation import RunActivation
from postroom.contracts.chat import CHAT_KIND, InboundStatus
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.records import replace
from postroom.contracts.runners import AnyRunner, Runner
from postroom.gateway import wording
from postroom.gateway.config import HomeChannel
from postroom.gateway.events import SendErrorKind, SendResult
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.api_server import ApiServerOptions
from postroom.gateway.platforms.base import AdapterState
from postroom.gateway.platforms.web import WebOptions
from postroom.gateway.replies import thread_name
from postroom.gateway.session import Platform
from postroom.http_api.guard import OpenPath
from postroom.http_api.readiness import Readiness
from postroom.relay import Relay
from postroom.services.runs import RunService
from postroom.stores.memory import MemoryRunStores
from postroom.stores.store import Transaction
from postroom.testing import ManualClock
from runtime.endpoint import END, FakeEndpoint, chunk
from table_rows import each_row

SECRET = "s3cret-of-sixteen-chars"
AGENT = '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
CHANNELS = """
[platforms.web]
token_env = "SECRET"
[platforms.api_server]
api_key_env = "SECRET"
[platforms.telegram]
token_env = "BOT"
webhook_secret_env = "SECRET"
webhook_url = "https://chat.test/channels/telegram"
[platforms.slack]
token_env = "SLACK"
signing_secret_env = "SECRET"
[platforms.webhook.routes.ci]
secret_env = "SECRET"
"""


def chat_service(
    tmp_path: Path, channels: str, clock: ManualClock, *, agent: str = AGENT, **details: Any
) -> ChatService:
    (tmp_path / "gateway.toml").write_text(agent + channels)
    given = {"SECRET": SECRET, "BOT": "4711:abc", "SLACK": "xoxb-1", "HOME": str(tmp_path)}
    told = load_gateway(Settings(data_dir=tmp_path), environment=given)
    assert told is not None
    registry = CollectorRegistry()
    runs = RunService(MemoryRunStores(clock), registry=registry, is_exclusive=True, timer=clock)
    chat = MemoryRunStores(clock).chat
    relay = Relay(runs.stores.store, {})
    given = {"runs": runs, "chat": chat, "relay": relay, "registry": registry, **details}
    return ChatService(told, clock=clock, timer=clock, **given)


async def test_a_thread_is_run_by_the_agent_that_its_name_names(tmp_path: Path, clock: ManualClock) -> None:
    routes = '[agents.poet]\n[[routes]]\nagent = "poet"\nmention = "poet"\n'
    made = await asyncio.to_thread(chat_service, tmp_path, CHANNELS + routes, clock)
    agents = made._answering
    threads = [thread_name("web", "default", "1", agent) for agent in (None, "poet", "Bo@gone")]
    assert [agents.agent_of(thread) for thread in threads] == ["default", "poet", "Bo@gone"]
    assert [agents.commits_steps(thread) for thread in threads] == [True, True, False]
    for_nobody = RunActivation.new(threads[2], [])
    with pytest.raises(errors.AgentNotFound, match="Bo@gone no longer answers in this chat"):
        await agents.chosen(for_nobody)
    plan = await agents.resolve(for_nobody, pinned="its run")
    assert plan.resolution_id == "its run", (
        "what waits for an agent that is gone becomes a run, which says so"
    )
    await agents.close()


async def test_models_of_chats_send_files_where_the_file_says_so(tmp_path: Path, clock: ManualClock) -> None:
    routes = '[agents.poet]\nsend_files = true\n[[routes]]\nagent = "poet"\nmention = "poet"\n'
    made = await asyncio.to_thread(chat_service, tmp_path, CHANNELS + routes, clock)
    runtime = made._answering._models
    assert runtime is not None
    found = {name: runtime._resolver.resolve(name) for name in ("default", "poet")}
    assert {name: list(one.usable_tools()) for name, one in found.items()} == {
        "default": [],
        "poet": ["send_file"],
    }
    assert [one.spec.commits_calls for one in found.values()] == [False, True]
    await made._answering.close()


async def test_a_server_speaks_answers_by_the_endpoint_that_its_file_names(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with AsyncExitStack() as stack:
        telegram = await stack.enter_async_context(FakeTelegram().serving())
        model = await stack.enter_async_context(FakeEndpoint().serving())
        model.answers = [[chunk(content="Hello Ada."), chunk("stop"), END]]
        speech = FakeSpeech()
        await stack.enter_async_context(speech.serving())
        (tmp_path / "token").write_text(TOKEN)
        (tmp_path / "token").chmod(0o600)
        (tmp_path / "key").write_text(KEY)
        (tmp_path / "key").chmod(0o600)
        agent = f'[agent]\nbase_url = "{model.url}"\nmodel = "m"\nspeech_key_file = "key"\n'
        agent += f'speech_url = "{speech.url}"\nspeech_model = "mouth"\nspeech_voice = "nova"\n'
        channel = f'[platforms.telegram]\ntoken_file = "token"\nbase_url = "{telegram.url}"\n'
        channel += '[platforms.telegram.allow]\n77 = "owner"\n'
        stores = MemoryRunStores(clock)
        relay = Relay(stores.store, {})
        runs = RunService(stores, registry=CollectorRegistry(), is_exclusive=True, timer=clock)
        made = await asyncio.to_thread(
            chat_service, tmp_path, channel, clock, agent=agent, runs=runs, chat=stores.chat, relay=relay
        )
        relaying = Tasks("relay")
        relaying.start(relay.serve(asyncio.Event()), name="relay")
        await made.start()
        try:
            for number, text in enumerate(("/voice on", "hello"), start=1):
                telegram.feed(update(number, message=message(number, chat=PRIVATE, text=text)))
            await settled(lambda: clock.advance(timedelta(milliseconds=50)) or telegram.sent("sendVoice"))
        finally:
            await made.stop()
            await relaying.close()
        [(_, _, content)] = [part for call in telegram.calls for part in call.files.values()]
        assert content == sound("Hello Ada.", "opus")


class Known:
    """Fake runners: Bo has one, Di none, Flo an unreadable one, and others do not exist."""

    async def runner_of(self, agent_id: str, agent: object = None) -> AnyRunner | None:
        match agent_id.partition("@")[0]:
            case "Bo":
                return Runner(argv=("x",), cwd="/work")
            case "Di":
                return None
            case "Flo":
                raise errors.InvalidRunner("the runner in the database cannot be read")
            case _:
                raise errors.AgentNotFound(f"there is no agent {agent_id!r}")


async def test_whoever_a_rule_names_and_cannot_answer_is_told_in_the_order_of_the_file(
    tmp_path: Path, clock: ManualClock
) -> None:
    async def knows_person(name: str) -> bool:
        return name == "ada"

    agents = ("Cy@harbour", "Di@harbour", "Flo@harbour")
    named = ("Bo@harbour", "human:ada", "human:eve", *agents, "human:eve")
    routes = [
        f'[[routes]]\nagent = "{one}"\nplatform = "web"\nmention = "m{number}"\n'
        for number, one in enumerate(named)
    ]
    page = '[platforms.web]\ntoken_env = "SECRET"\n' + "".join(routes)
    details = {"agents": Agent(), "runners": Known(), "knows_person": knows_person}
    made = await asyncio.to_thread(chat_service, tmp_path, page, clock, **details)
    eve, cy, di, flo = await made.missing()
    assert eve.what == "[[routes]] rule 3 names human:eve, but there is no such person"
    assert "postroom people add eve" in eve.remedy
    assert cy.what == "[[routes]] rule 4 names Cy@harbour, but there is no such agent"
    assert di.what == "[[routes]] rule 5 names Di@harbour, but this agent has no runner"
    assert cy.remedy == "run `postroom agents register Cy -p harbour`, or use another agent"
    assert di.remedy == "run `postroom agents set-runner Di -p harbour -- PROGRAM`, or use another agent"
    assert flo.what == "[[routes]] rule 6 names Flo@harbour: the runner in the database cannot be read"
    assert (made.names("human:Ada"), made.names("Cy@harbour"), made.names("human:zoe")) == (True, True, False)


async def test_an_agent_that_answers_everything_and_is_not_there_is_told_too(
    tmp_path: Path, clock: ManualClock
) -> None:
    file = '[agent]\nrun = "Cy@harbour"\n[platforms.web]\ntoken_env = "SECRET"\n'
    details = {"agent": "", "agents": Agent(), "runners": Known()}
    made = await asyncio.to_thread(chat_service, tmp_path, file, clock, **details)
    [cy] = await made.missing()
    assert cy.what.startswith("[agent] names Cy@harbour")


def test_each_channel_answers_below_its_own_address_and_no_other(tmp_path: Path, clock: ManualClock) -> None:
    made = chat_service(tmp_path, CHANNELS, clock)
    assert made.open_paths == (
        OpenPath(path="/channels/slack", limit=1024 * 1024),
        OpenPath(path="/channels/telegram", limit=1024 * 1024),
        OpenPath(path="/channels/webhook", limit=1024 * 1024),
        OpenPath(path="/chat", limit=20_000_000),
        OpenPath(path="/v1", limit=10_000_000),
    )
    paths = {getattr(route, "path", "") for route in made.routes()}
    assert {"/chat", "/v1/models", "/channels"} <= paths


async def test_the_server_is_not_ready_before_the_channels_that_it_serves_receive(
    tmp_path: Path, clock: ManualClock
) -> None:
    polls = '[platforms.telegram]\ntoken_env = "BOT"\n'
    made = await asyncio.to_thread(
        chat_service, tmp_path, polls + '[platforms.web]\ntoken_env = "SECRET"\n', clock
    )
    operator, (page, telegram) = GatewayService(made), made.adapters
    assert [page.platform, telegram.platform] == [Platform.WEB, Platform.TELEGRAM]
    assert not Readiness(checks=(operator.check(),)).is_ready
    await page.connect()
    assert Readiness(checks=(operator.check(),)).is_ready
    assert operator.check().facts == {"connected": 1, "of": 2}
    await page.disconnect()


def test_a_channel_that_polls_has_no_address(tmp_path: Path, clock: ManualClock) -> None:
    made = chat_service(tmp_path, '[platforms.telegram]\ntoken_env = "BOT"\n', clock)
    assert made.routes() == []
    assert open_paths(made.adapters) == ()


def test_a_platform_that_is_not_enabled_needs_no_library_and_is_not_made(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "discord", None)  # so that its import fails
    off = '[platforms.discord]\nenabled = false\ntoken_env = "NONE"\n[platforms.web]\ntoken_env = "SECRET"\n'
    made = chat_service(tmp_path, off, clock)
    assert [one.platform for one in made.adapters] == [Platform.WEB]


@dataclass
class Stand:
    """Replaces `ChatService` in tests of these parts."""

    gateway: Gateway
    adapters: tuple[FakeChannel, ...]
    runs: Any
    mailbox: Any
    state: str = "running"

    async def missing(self) -> list[Missing]:
        return []


@dataclass
class Desk:
    """An operator of a gateway with a fake channel and an agent."""

    operator: GatewayService
    stand: Stand
    gateway: Gateway
    channel: FakeChannel
    room: Room
    agent: Agent


@pytest.fixture
async def desk(clock: ManualClock) -> AsyncIterator[Desk]:
    runs = MemoryRunStores(clock)
    room = Room(stores=runs.chat, runs=runs, clock=clock)
    agent = Agent()
    gateway, channel = await room.open(agent, config=replace(CONFIG, unauthorized_dm_behavior="pair"))
    stand = Stand(gateway, (channel,), SimpleNamespace(stores=runs), room.opened[0][1])
    yield Desk(GatewayService(stand), stand, gateway, channel, room, agent)  # type: ignore[arg-type]  # its parts
    await room.close()


async def test_a_stranger_is_let_in_by_the_code_and_shut_out_again(desk: Desk) -> None:
    await desk.channel.say("let me in", user="stranger")
    await settled(lambda: desk.channel.said, desk.room.hurry(desk.gateway))
    code = next(
        word.strip(".`*") for word in desk.channel.said[0].text.split() if _is_code(word.strip(".`*"))
    )
    asking = (await desk.operator.people())["asking"]
    assert [one["user_id"] for one in asking] == ["stranger"]
    assert code not in str(asking)
    with pytest.raises(errors.InvalidArgument, match="unknown role"):
        await desk.operator.pair("telegram", code, "boss")
    with pytest.raises(errors.InvalidArgument, match="nobody with this pairing code is waiting for access"):
        await desk.operator.pair("telegram", "ABCDEFGH", "member")
    found = await desk.operator.pair("telegram", code.lower(), "member")
    assert found["person"]["user_id"] == "stranger"
    people = (await desk.operator.people())["people"]
    assert [(one["user_id"], one["from"]) for one in people] == [
        *(("u1", "file"), ("u2", "file"), ("u3", "file"), ("stranger", "paired")),
    ]
    await desk.operator.shut_out("telegram", "stranger")
    with pytest.raises(errors.InvalidArgument, match="was admitted by a pairing code"):
        await desk.operator.shut_out("telegram", "stranger")
    with pytest.raises(errors.InvalidArgument, match="was admitted by a pairing code"):
        await desk.operator.shut_out("telegram", "u1")


async def test_the_access_that_the_secret_of_a_channel_gives_is_listed(clock: ManualClock) -> None:
    runs = MemoryRunStores(clock)
    room = Room(stores=runs.chat, runs=runs, clock=clock)
    secrets = {
        Platform.WEB: WebOptions(token="a token of the chat page"),
        Platform.API_SERVER: ApiServerOptions(api_key="a-key-of-sixteen"),
    }
    gateway, channel = await room.open(
        Agent(), config=replace(CONFIG, platforms={**CONFIG.platforms, **secrets})
    )
    stand = Stand(gateway, (channel,), SimpleNamespace(stores=runs), room.opened[0][1])
    people = (await GatewayService(stand).people())["people"]  # type: ignore[arg-type]  # its parts
    assert [
        (one["platform"], one["user_id"], one["role"])
        for one in people  # type: ignore[attr-defined]  # a list
        if one["from"] == "secret"
    ] == [("web", "*", "owner"), ("api_server", "*", "operator")]
    await room.close()


def _is_code(word: str) -> bool:
    return len(word) == 8 and word.isalnum() and word.isupper()


async def test_a_notice_is_kept_and_said_once_a_key(desk: Desk) -> None:
    notice: dict[str, Any] = {
        **{"platform": "telegram", "chat_id": "12345", "text": "The lights go out.", "key": "k"},
        "thread_id": "7",
    }
    first = await desk.operator.send(**notice)
    assert (await desk.operator.send(**notice))["outbox_id"] == first["outbox_id"]
    await settled(lambda: desk.channel.said, desk.room.hurry(desk.gateway))
    assert [(one.text, one.metadata["thread_id"]) for one in desk.channel.said] == [
        ("The lights go out.", "7")
    ]


async def test_what_no_chat_took_is_discarded_once_and_never_sent(desk: Desk) -> None:
    desk.channel.refusals.append(SendResult.failed(SendErrorKind.FORBIDDEN, "blocked"))
    notice: dict[str, Any] = {
        **{"platform": "telegram", "chat_id": "12345", "text": "The lights go out.", "key": "k"},
    }
    row = await desk.operator.send(**notice)

    async def undelivered() -> Any:
        return (await desk.operator.dead())["undelivered"]

    time_passes = desk.room.hurry(desk.gateway)
    async with asyncio.timeout(90):
        while not (time_passes() and await undelivered()):
            await asyncio.sleep(0)
    assert (await desk.operator.discard(str(row["outbox_id"])[:-3]))["outbox_id"] == row["outbox_id"]
    assert await undelivered() == []
    for act in (desk.operator.discard, desk.operator.revive):
        with pytest.raises(errors.InvalidArgument, match="no dead letter of a chat with this id"):
            await act(str(row["outbox_id"]))
    assert (await desk.operator.send(**notice))["outbox_id"] == row["outbox_id"]
    assert desk.channel.texts("12345") == []


async def test_a_notice_without_a_chat_goes_home(desk: Desk) -> None:
    notice: dict[str, Any] = {"platform": "telegram", "text": "The lights go out."}
    with pytest.raises(errors.InvalidArgument, match="no home channel"):
        await desk.operator.send(**notice)
    await desk.channel.say("/sethome", chat="harbour")
    await settled(lambda: desk.channel.said, desk.room.hurry(desk.gateway))
    await desk.operator.send(**notice)
    await settled(lambda: len(desk.channel.said) == 2, desk.room.hurry(desk.gateway))
    assert desk.channel.texts("harbour")[1:] == ["The lights go out."]


async def test_the_files_home_counts_where_nobody_made_another(clock: ManualClock) -> None:
    runs = MemoryRunStores(clock)
    room = Room(stores=runs.chat, runs=runs, clock=clock)
    home = HomeChannel(chat_id="team", thread_id="7")
    told = replace(CONFIG.platforms[Platform.TELEGRAM], home_channel=home)
    config = replace(CONFIG, platforms={Platform.TELEGRAM: told})
    gateway, channel = await room.open(Agent(), config=config)
    operator = GatewayService(Stand(gateway, (channel,), SimpleNamespace(stores=runs), None))  # type: ignore[arg-type]  # its parts
    await operator.send(platform="telegram", text="The lights go out.")
    await settled(lambda: channel.said, room.hurry(gateway))
    assert (channel.said[0].chat_id, channel.said[0].metadata["thread_id"]) == ("team", "7")
    await room.close()


@each_row(
    "changes, words",
    [({"platform": "slack"}, "unknown channel"), ({"text": " "}, "a text"), ({"chat_id": ""}, "a chat")],
)
async def test_a_notice_that_cannot_be_said_is_refused(desk: Desk, changes: dict, words: str) -> None:
    told = {"platform": "telegram", "chat_id": "1", "text": "hi", **changes}
    with pytest.raises(errors.InvalidArgument, match=words):
        await desk.operator.send(**told)


async def test_what_quiet_hours_hold_is_counted_with_what_waits_behind_it(desk: Desk) -> None:
    def waiting(number: int, chat: str) -> OutboxDraft:
        return OutboxDraft(
            kind=CHAT_KIND,
            target="a channel that is not here",
            payload={},
            order_key=chat,
            dedupe_key=str(number),
        )

    def change(tx: Transaction) -> None:
        tx.outbox.enqueue([waiting(number, chat) for number, chat in enumerate("aaabb")])
        [first] = tx.outbox.claim(CHAT_KIND, "a channel that is not here", lease_ms=1_000, limit=1)
        tx.outbox.nack(
            [first.outbox_id], [first.claim_token], error=wording.QUIET, delay_ms=60_000, untried=True
        )

    await desk.room.runs.store.write(change)
    assert (await desk.operator.health())["held"] == 3


async def test_a_notice_waits_for_a_channel_whose_account_is_not_known(desk: Desk) -> None:
    desk.channel.liveness.state = AdapterState.FAILED
    with pytest.raises(errors.ServerUnavailable, match="not connected"):
        await desk.operator.send(platform="telegram", chat_id="1", text="hi")


async def test_what_could_not_be_delivered_is_listed_and_tried_again(desk: Desk) -> None:
    desk.channel.refusals.append(SendResult.failed(SendErrorKind.FORBIDDEN, "the bot was blocked"))
    sent = await desk.operator.send(platform="telegram", chat_id="12345", text="The lights go out.")
    await settled(lambda: not desk.channel.refusals, desk.room.hurry(desk.gateway))
    async with asyncio.timeout(60):
        while not (found := (await desk.operator.dead())["undelivered"]):
            await asyncio.sleep(0)
    assert (found[0]["outbox_id"], found[0]["chat_id"]) == (sent["outbox_id"], "12345")
    assert "the bot was blocked" in found[0]["error"]
    assert (await desk.operator.health())["undelivered"] == 1
    assert (await desk.operator.health())["held"] == 0
    await desk.operator.revive(sent["outbox_id"])
    await settled(lambda: desk.channel.said, desk.room.hurry(desk.gateway))
    assert desk.channel.texts() == ["The lights go out."]
    assert (await desk.operator.dead())["undelivered"] == []
    with pytest.raises(errors.InvalidArgument, match="no dead letter of a chat with this id"):
        await desk.operator.revive(sent["outbox_id"])


async def test_an_answer_that_was_given_up_is_delivered_when_it_is_revived(desk: Desk) -> None:
    desk.channel.refusals.append(SendResult.failed(SendErrorKind.FORBIDDEN, "the bot was blocked"))
    await desk.channel.say("lights?")
    await settled(lambda: not desk.channel.refusals, desk.room.hurry(desk.gateway))
    async with asyncio.timeout(60):
        while not (found := (await desk.operator.dead())["undelivered"]):
            await asyncio.sleep(0)
        while InboundStatus.FAILED not in (statuses := await desk.room.statuses()):
            await asyncio.sleep(0)
    assert statuses[InboundStatus.FAILED] == 1
    assert [(one["chat"], one["who"]) for one in found] == [("telegram/12345", "U1 on telegram")]
    await desk.operator.revive(found[0]["outbox_id"][:-4])
    await settled(lambda: desk.channel.said, desk.room.hurry(desk.gateway))
    assert desk.channel.texts() == ["re: lights?"]


async def test_what_could_not_be_delivered_is_listed_where_its_chat_is_not_known_any_more(desk: Desk) -> None:
    unknown = OutboxDraft(
        kind="chat",
        target="telegram/bot",
        payload={"kind": "answer", "thread_id": "chat/telegram/bot/gone", "inbound_ids": [77, "x"]},
        dedupe_key="gone",
    )
    unreadable = replace(unknown, payload={"source": {"platform": "no platform"}}, dedupe_key="odd")
    await desk.room.runs.outbox.enqueue(unknown)
    await desk.room.runs.outbox.enqueue(unreadable)
    desk.gateway.wake()
    async with asyncio.timeout(60):
        while len(found := (await desk.operator.dead())["undelivered"]) < 2:
            await asyncio.sleep(0)
    assert {(one["target"], one["chat"]) for one in found} == {("telegram/bot", None)}


@each_row(
    "target, why", [("telegram/another", "no channel of this"), ("api_server/default", "OpenAI protocol")]
)
async def test_what_would_reach_nobody_is_not_tried_again_and_stays_on_the_list(
    clock: ManualClock, target: str, why: str
) -> None:
    runs = MemoryRunStores(clock)
    row = await runs.outbox.enqueue(OutboxDraft(kind="chat", target=target, payload={}, dedupe_key="k"))
    [held] = await runs.outbox.claim("chat", target, lease_ms=9_000)
    await runs.outbox.nack(row.outbox_id, held.claim_token or "", error="no such chat", final=True)
    channel = FakeChannel(clock=clock)
    for operator in (UndeliveredService(runs), UndeliveredService(runs, [channel])):
        with pytest.raises(errors.InvalidArgument, match=why):
            await operator.revive(row.outbox_id)
        [listed] = (await operator.dead())["undelivered"]
        assert listed["outbox_id"] == row.outbox_id
    await operator.discard(row.outbox_id)
    assert await operator.dead() == {"undelivered": []}


async def test_health_says_where_every_message_is(desk: Desk) -> None:
    desk.agent.free.clear()
    await desk.channel.say("one")
    await desk.channel.say("two")
    await settled(desk.agent.began(1), desk.room.hurry(desk.gateway))
    found = await desk.operator.health()
    assert found["messages"] == {
        **{"accepted": 2, "finished": 0, "queued": 1, "running": 1, "rejected": 0, "adds_up": True},
    }
    assert found["dispatches"]["claimed"] == 1
    assert found["channels"]["telegram"]["state"] == "connected"
    assert str(found["channels"]["telegram"]["inbound_at"]).endswith("Z")
    desk.agent.free.set()


@each_row(
    "state, channel, expected",
    [
        ("running", AdapterState.CONNECTED, "ok"),
        ("running", AdapterState.RECONNECTING, "failed"),
        ("running", AdapterState.FAILED, "failed"),
        ("starting", AdapterState.CONNECTED, "unknown"),
    ],
)
async def test_readiness_tells_of_channels_and_does_not_hang_on_them(
    desk: Desk, state: str, channel: AdapterState, expected: str
) -> None:
    desk.stand.state, desk.channel.liveness.state = state, channel
    check = desk.operator.check()
    assert (check.name, check.state, check.required) == ("channels", expected, False)
    assert check.facts["of"] == 1


class Starting:
    """Stands for a gateway whose start goes as the test says."""

    def __init__(self, failure: Exception | None = None, *, hangs: bool = False) -> None:
        self.state = "stopped"
        self.failure = failure
        self.hangs = hangs
        self.hurried = asyncio.Event()

    async def start(self) -> None:
        self.state = "starting"
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        self.state = "running"

    async def stop(self) -> None:
        self.state = "stopping"
        if self.hangs:
            await self.hurried.wait()
        self.state = "stopped"

    async def hurry(self) -> None:
        self.hurried.set()


@each_row("kind", [None, errors.ConfigError, RuntimeError])
async def test_a_gateway_that_cannot_start_ends_the_server(kind: type[Exception] | None) -> None:
    ended: list[bool] = []
    stand = Starting(None if kind is None else kind("a token is wrong"))
    chats = Chats(stand, end=lambda: ended.append(True))  # type: ignore[arg-type]  # its parts
    await chats.start(patience=5, told_to_stop=lambda: False)
    await chats.stop()
    assert ended == ([] if kind is None else [True])
    expected = {None: type(None), errors.ConfigError: errors.ConfigError, RuntimeError: errors.InternalError}[
        kind
    ]
    assert isinstance(chats.failure, expected)


async def test_a_start_that_hangs_holds_nobody_up_and_ends_with_the_server() -> None:
    stand = Starting(hangs=True)
    chats = Chats(stand, end=lambda: None)  # type: ignore[arg-type]  # its parts
    await chats.start(patience=0.01, told_to_stop=lambda: False)
    assert stand.state == "starting"
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        stopping = group.create_task(chats.stop())
        while stand.state != "stopping":
            await asyncio.sleep(0)
        chats.hurry()
        await stopping
    assert (stand.state, chats.failure) == ("stopped", None)


async def test_told_to_stop_while_it_starts_it_waits_no_longer() -> None:
    stand = Starting(hangs=True)
    chats = Chats(stand, end=lambda: None)  # type: ignore[arg-type]  # its parts
    async with asyncio.timeout(60):
        await chats.start(patience=60, told_to_stop=lambda: True)
    stand.hurried.set()
    await chats.stop()
    assert stand.state == "stopped"
