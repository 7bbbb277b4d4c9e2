"""Tests (pytest or unittest) for the promises that every channel must keep, for authors of plug-ins.

    class TestMyChannel(ChannelPromises):
        @asynccontextmanager
        async def driver(self, folder: Path) -> AsyncIterator[ChannelDriver]:
            async with MyFakePlatform() as fake:
                yield MyDriver(fake)

A driver simulates the people and the platform. Each test opens a complete gateway on an empty in-memory
store, with a clock that only the test moves, and with an agent that answers `re: ` and the text. `lacks`
names the abilities that a platform does not have, each with a reason. Tests that need such an ability are
skipped with this reason.
"""

import asyncio
import dataclasses
import logging
import tempfile
import time
import unittest
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

from postroom.app.undelivered import UndeliveredService
from postroom.concurrency import Tasks
from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink, TextDelta
from postroom.contracts.chat import InboundStatus
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.errors import CredentialRefused, InvalidArgument, StoreUnavailable
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.runs import TerminationReason
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway import wording
from postroom.gateway.capabilities import RateLimits
from postroom.gateway.config import GatewayConfig, PlatformConfig
from postroom.gateway.events import MessageEvent
from postroom.gateway.files import ChatFiles
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.base import AdapterState, BasePlatformAdapter, Inbound
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.relay import Relay
from postroom.stores.memory import MemoryRunStores
from postroom.testing.clock import ManualClock

ANN: Final = "ann"
"""A person with the role owner."""
BEN: Final = "ben"
"""A person with the role member."""
EVE: Final = "eve"
"""A stranger."""
BEGINNING: Final = "I think that this is a rather good beginning "
PATIENCE_S: Final = 60
_GATEWAYS = count(1)


@dataclass(frozen=True)
class Shown:
    """A message from the agent as the chat shows it."""

    id: str
    text: str
    buttons: tuple[tuple[str, str], ...] = ()
    """The label and the value of each button."""


@dataclass(eq=False)
class Sent:
    """A message from a person as the platform stores it."""

    text: str
    person: str
    id: str
    raw: Any = None
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Extra:
    """The optional parts of a message besides the text."""

    group: bool = False
    """Whether the message is in a group."""
    mention: bool = True
    """Whether a message in a group mentions the bot."""
    forward: tuple[str, str] | None = None
    """The author and the text of a forwarded message."""
    reply: tuple[str, str] | None = None
    """The author and the text of the message to which this message replies."""
    file: tuple[str, bytes] | None = None
    """A file attached to the message, or to the forwarded message."""
    unknown: bool = False
    """Whether the message has a part of a kind that no adapter knows."""


PLAIN: Final = Extra()


class ChannelDriver(ABC):
    """Simulates the people and the platform of one channel.

    `lacks` maps each ability that the platform lacks to a reason. Tests that need a missing ability are
    skipped:

    | ability | if it is missing |
    |---|---|
    | acknowledgements | the platform does not wait for an acknowledgement; `acknowledged` is not called |
    | dead letters | no update becomes a dead letter |
    | edits, deletes | `edit`, `delete` are not called |
    | drafts | an answer is not shown while it is written |
    | groups, strangers | there are no groups, or no unknown people |
    | limits, refusals, lost answers | `limit`, `refuse`, `lose_answer` are not called |
    | outages | `go_away` and `come_back` are not called |
    | shared bots | each server answers for itself |
    | credentials | the platform checks no credential |
    | parts | a message can have any length |
    """

    platform: ClassVar[Platform]
    kind: ClassVar[type[BasePlatformAdapter]]
    people: ClassVar[Mapping[str, str]]
    """The platform's ids of `ANN`, `BEN` and `EVE`."""
    chat: ClassVar[str]
    """The id of Ann's direct chat."""
    lacks: ClassVar[Mapping[str, str]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    """The texts that no log or error may contain. The first of these texts is the credential."""
    wait_s: ClassVar[int] = 120
    """The number of seconds that `limit` makes the adapter wait."""

    @abstractmethod
    def config(self, *, secret: str | None = None) -> PlatformConfig:
        """Return the settings of the channel.

        `secret` replaces the valid credential with a wrong credential.
        """

    @abstractmethod
    async def say(self, text: str, person: str = ANN, extra: Extra = PLAIN) -> Sent:
        """Deliver a message from a person, by default in the person's direct chat."""

    @abstractmethod
    def shown(self) -> Sequence[Shown]:
        """Return the agent's messages in the chat, in order, without deleted messages."""

    @abstractmethod
    async def malformed(self) -> None:
        """Deliver an update that the adapter cannot read, and that contains the text `sevenfold`."""

    @property
    def allow(self) -> dict[str, PersonRole]:
        """The setting `allow`: Ann is an owner, Ben is a member."""
        return {self.people[ANN]: PersonRole.OWNER, self.people[BEN]: PersonRole.MEMBER}

    def adapter(self, clock: ManualClock, *, secret: str | None = None) -> BasePlatformAdapter:
        """Create the adapter of the channel without rate limits."""
        given_type = self.kind

        class Hurried(given_type):  # type: ignore[misc, valid-type]  # the class is chosen by the platform
            capabilities = dataclasses.replace(given_type.capabilities, rates=RateLimits())

        return Hurried(self.config(secret=secret), clock=clock, timer=clock)

    async def opened(self, adapter: BasePlatformAdapter) -> None:  # noqa: B027 - most platforms do it by themselves
        """Deliver the updates that were held back until the adapter has connected."""

    async def send_again(self) -> None:  # noqa: B027 - as above
        """Deliver unacknowledged updates again, unless the platform does this by itself."""

    # A driver implements the following methods if its platform has the abilities.

    async def redeliver(self, sent: Sent) -> None:
        """Deliver a message a second time, as a platform does after a lost acknowledgement."""
        raise NotImplementedError

    def acknowledged(self, sent: Sent) -> bool:
        """Return whether the adapter has acknowledged a message."""
        raise NotImplementedError

    async def edit(self, sent: Sent, text: str) -> None:
        """Change the text of a person's message."""
        raise NotImplementedError

    async def delete(self, sent: Sent) -> None:
        """Delete a person's message."""
        raise NotImplementedError

    def looks(self) -> int:
        """Return how often the adapter has asked the platform for updates."""
        raise NotImplementedError

    def tries(self) -> int:
        """Return how often the adapter has tried to send a new message."""
        raise NotImplementedError

    def limit(self) -> None:
        """Reject the agent's next message with a rate limit of `wait_s` seconds."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Reject the agent's next message permanently."""
        raise NotImplementedError

    def lose_answer(self) -> None:
        """Show the agent's next message in the chat, but lose the response to the adapter."""
        raise NotImplementedError

    def lift(self) -> None:  # noqa: B027 - most end by themselves
        """Accept the agent's messages again after `limit` or `refuse` was called."""

    async def go_away(self) -> None:
        """Stop answering requests until `come_back` is called."""
        raise NotImplementedError

    async def come_back(self) -> None:
        """Answer requests again after `go_away` was called."""
        raise NotImplementedError


class Echo(RunDispatchExecutor):
    """A test agent that answers each message with `re: ` and the text of the message.

    Attributes:
        free: Runs wait until this is set.
        stream: The pieces of text that each run streams before it waits.
        act: If set, it is called instead of the built-in behaviour.
        read: The message texts that each run received.
        senders: The senders of these texts.
    """

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.stream: list[str] = []
        self.act: Callable[[RunActivation, EventSink], Awaitable[AgentRunResult]] | None = None
        self.read: list[list[str]] = []
        self.senders: list[list[object]] = []

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Answer the messages of a run."""
        texts = [message.text() for message in activation.messages]
        self.read.append(texts)
        self.senders.append([message.content[0].data.get("sender") for message in activation.messages])
        for delta in self.stream:
            await sink.emit(TextDelta(delta=delta))
        if self.act is not None:
            return await self.act(activation, sink)
        await self.free.wait()
        return answered(activation, "re: " + " | ".join(texts))

    def recovery(self, activation: RunActivation) -> Recovery:
        """Return `RESUME`, so that a run continues after a crash."""
        return Recovery.RESUME


def answered(activation: RunActivation, text: str) -> AgentRunResult:
    """Return the result of a run that ended with the answer `text`."""
    return AgentRunResult(
        run_id=activation.run_id or "", response=text, termination=TerminationReason.natural_end(), steps=1
    )


class Door:
    """Passes the adapter's messages to the gateway, and can simulate failures of the store.

    Attributes:
        before: Errors to raise, one for each message, before the message is stored.
        after: Errors to raise, one for each message, after the message is stored.
        changes: Errors to raise, one for each edit, deletion or press, before the change is stored.
        handed: The texts that the adapter handed over. The word `poison` in a text triggers a defect.
    """

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.changes: list[Exception] = []
        self.handed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("edited", "deleted", "pressed") and self.changes:
            raise self.changes.pop(0)
        return getattr(self._inbound, name)

    async def accept(self, event: MessageEvent) -> None:
        """Store a message, or raise the error that the test has planned."""
        self.handed.append(event.text)
        if "poison" in event.text:
            raise TypeError("a defect in our own code")
        if self.before:
            raise self.before.pop(0)
        await self._inbound.accept(event)
        if self.after:
            raise self.after.pop(0)


class Stage:
    """A gateway with one channel, a test agent, and a driver that simulates the platform."""

    gateway: Gateway
    adapter: BasePlatformAdapter
    door: Door

    def __init__(self, driver: ChannelDriver) -> None:
        self.driver = driver
        self.clock = ManualClock()
        self.agent = Echo()
        self._stores = MemoryRunStores(self.clock)
        self._mailbox: Mailbox | None = None
        self._relaying = Tasks("relay")
        self._passed_at = 0.0

    def lacks(self, ability: str) -> bool:
        """Return whether the platform lacks an ability."""
        return ability in self.driver.lacks

    async def start(self) -> None:
        """Open the gateway, and connect the channel."""
        stores, clock = self._stores, self.clock
        config = GatewayConfig(platforms={self.driver.platform: self.driver.config()}, drain=timedelta(0))
        self.adapter = self.driver.adapter(clock)
        sessions = Sessions(stores.chat, config, clock)
        presenter = StreamingPresenter(config.streaming, sessions, [self.adapter], clock, clock)
        files = ChatFiles(config, stores.chat.files, [self.adapter])
        relay = Relay(stores.store, {})
        self._mailbox = Mailbox(
            ChatExecutor(self.agent, presenter, files.of_run),
            stores,
            consumer_id=f"gateway-{next(_GATEWAYS)}",
            effects=ChatEffects(),
            timer=clock,
            config=MailboxConfig(drain_grace=timedelta(0)),
        )
        self.gateway = Gateway(
            config,
            stores=stores.chat,
            outbox=stores.outbox,
            threads=stores.threads,
            run_queue=self._mailbox,
            presenter=presenter,
            relay=relay,
            clock=clock,
            timer=clock,
            store=stores.store,
        )
        await self.gateway.start()
        self._relaying = Tasks("relay")
        self._relaying.start(relay.serve(asyncio.Event()), name="serve")
        self.door = Door(self.gateway.intake)
        self.adapter.set_message_handler(self.door)
        await self.driver.opened(self.adapter)
        await self._mailbox.poll()

    async def stop(self) -> None:
        """Stop the gateway; the store keeps its content for the next call of `start`."""
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            await self.gateway.stop()
            await mailbox.aclose(timedelta(0))
            await self._relaying.close()

    async def close(self) -> None:
        """Stop the gateway, and close the store."""
        await self.stop()
        await asyncio.to_thread(self._stores.store.close)

    def pass_a_moment(self) -> bool:
        """Move the clock by 50 ms, and deliver everything that is due; return whether the clock was moved.

        The clock runs at most five times as fast as real time, so some calls do not move the clock.
        """
        now = time.monotonic()
        if now - self._passed_at < 0.01:
            return False
        self._passed_at = now
        self.clock.advance(timedelta(milliseconds=50))
        self.gateway.wake()
        return True

    async def until(self, *conditions: Callable[[], object]) -> None:
        """Move the clock forward until all `conditions` are true."""
        try:
            await settled(self.pass_a_moment, *conditions, within_s=PATIENCE_S)
        except TimeoutError:
            state = self.adapter.liveness.shown()
            raise AssertionError(f"shown {self.texts()}, read {self.read()}, channel {state}") from None

    async def pass_time(self, seconds: int) -> None:
        """Move the clock forward second by second, and let all tasks run in each second."""
        for _ in range(seconds):
            self.clock.advance(timedelta(seconds=1))
            self.gateway.wake()
            for _ in range(20):
                await asyncio.sleep(0)

    async def statuses(self) -> dict[InboundStatus, int]:
        """Return the number of stored messages by status."""
        return dict(await self._stores.chat.intake_log.counts())

    async def until_stored(self, messages: int) -> None:
        """Move the clock forward until `messages` messages are stored."""
        async with asyncio.timeout(PATIENCE_S):
            while sum((await self.statuses()).values()) < messages:
                self.pass_a_moment()
                await asyncio.sleep(0)

    async def answered(self, messages: int) -> None:
        """Move the clock forward until `messages` messages are stored and answered."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                fields = await self.statuses()
                is_open = fields.get(InboundStatus.WAITING, 0) + fields.get(InboundStatus.HANDED_OVER, 0)
                if sum(fields.values()) == messages and not is_open:
                    return
                self.pass_a_moment()
                await asyncio.sleep(0)

    async def dead(self, number: int) -> list[dict[str, Any]]:
        """Move the clock forward until there are `number` dead letters, and return the dead letters."""
        service = UndeliveredService(self._stores, [self.adapter])
        async with asyncio.timeout(PATIENCE_S):
            while True:
                dead_letters = await service.dead()
                undelivered: list[dict[str, Any]] = dead_letters["undelivered"]  # type: ignore[assignment]  # a list of rows
                if len(undelivered) >= number:
                    return undelivered
                self.pass_a_moment()
                await asyncio.sleep(0)

    def texts(self) -> list[str]:
        """Return the texts of the agent's messages in the chat."""
        return [shown.text for shown in self.driver.shown()]

    def shows(self, text: str) -> Callable[[], bool]:
        """Return a condition that is true when the chat shows the agent's text `text`."""
        return lambda: text in self.texts()

    def read(self) -> list[str]:
        """Return the texts that the agent has read."""
        return [text for texts in self.agent.read for text in texts]

    async def hold(self) -> Sent:
        """Send a message to the agent; the run stays active until `agent.free` is set."""
        self.agent.free.clear()
        first = await self.driver.say("first")
        await self.until(lambda: self.agent.read)
        return first


async def settled(*conditions: Any, within_s: float = 90.0) -> None:
    """Wait until every condition is true, while other tasks run.

    Raises:
        TimeoutError: Some conditions are false after `within_s` seconds. The text states their number.
    """
    open_ones = list(conditions)
    try:
        async with asyncio.timeout(within_s):
            while open_ones := [condition for condition in conditions if not condition()]:  # noqa: ASYNC110 - no condition tells its change
                await asyncio.sleep(0)
    except TimeoutError:
        text = f"{len(open_ones)} of {len(conditions)} conditions do not hold after {within_s:g} s"
        raise TimeoutError(text) from None


Promise = Callable[["ChannelPromises", Stage], Awaitable[None]]


def needs(*abilities: str) -> Callable[[Promise], Callable[["ChannelPromises"], None]]:
    """Return a decorator that skips a test if the platform lacks one of the `abilities`."""

    def made(promise: Promise) -> Callable[["ChannelPromises"], None]:
        async def keep(self: "ChannelPromises", folder: Path) -> None:
            async with self.driver(folder) as driver:
                lacking = [
                    f"without {ability}: {driver.lacks[ability]}"
                    for ability in abilities
                    if ability in driver.lacks
                ]
                if not lacking:
                    stage = Stage(driver)
                    try:
                        await promise(self, stage)
                    finally:
                        await stage.close()
            if lacking:
                raise unittest.SkipTest(lacking[0])

        def test(self: "ChannelPromises") -> None:
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(keep(self, Path(folder)))

        test.__name__, test.__doc__ = promise.__name__, promise.__doc__
        test.__qualname__, test.__module__ = promise.__qualname__, promise.__module__
        test.abilities = abilities  # type: ignore[attr-defined]  # for the selection of tests
        return test

    return made


class ChannelPromises(ABC):
    """The tests of a channel, one test for each promise that a channel must keep.

    Write a subclass in a test file to run the tests. The name of the subclass must begin with `Test`, and the
    subclass must implement `driver`.
    """

    @abstractmethod
    def driver(self, folder: Path) -> AbstractAsyncContextManager[ChannelDriver]:
        """Open the simulated platform, and close the platform at the end of the test.

        `folder` is an empty folder.
        """

    @needs()
    async def test_a_message_is_acknowledged_only_when_it_is_stored(self, stage: Stage) -> None:
        await stage.start()
        stage.door.before = [StoreUnavailable("the disk is away")] * 2
        sent = await stage.driver.say("hello")
        await stage.until(lambda: len(stage.door.before) < 2)
        assert stage.lacks("acknowledgements") or not stage.driver.acknowledged(sent)
        assert await stage.statuses() == {}
        while stage.door.before:
            await stage.driver.send_again()
            await stage.pass_time(1)
        await stage.driver.send_again()
        await stage.until(stage.shows("re: hello"))
        await stage.until(lambda: stage.lacks("acknowledgements") or stage.driver.acknowledged(sent))

    @needs()
    async def test_a_message_that_is_not_stored_holds_those_behind_it(self, stage: Stage) -> None:
        await stage.start()
        stage.door.before = [StoreUnavailable("the disk is away")]
        for text in ("one", "two", "three"):
            await stage.driver.say(text)
        await stage.until(lambda: not stage.door.before)
        await stage.driver.send_again()
        await stage.answered(3)
        assert stage.read() == ["one", "two", "three"]

    @needs()
    async def test_a_message_whose_acknowledgement_is_lost_is_answered_once(self, stage: Stage) -> None:
        await stage.start()
        stage.door.after = [StoreUnavailable("cut off behind the commit")]
        await stage.driver.say("hello")
        await stage.until(lambda: not stage.door.after)
        await stage.driver.send_again()
        await stage.until(lambda: len(stage.door.handed) == 2)
        await stage.answered(1)
        assert (stage.read(), stage.texts()) == (["hello"], ["re: hello"])

    @needs()
    async def test_an_update_that_the_platform_sends_again_is_answered_once(self, stage: Stage) -> None:
        await stage.start()
        sent = await stage.driver.say("hello")
        await stage.until(stage.shows("re: hello"))
        await stage.driver.redeliver(sent)
        await stage.until(lambda: stage.door.handed.count(stage.door.handed[0]) == 2)
        await stage.driver.say("and then")
        await stage.answered(2)
        assert (stage.read(), stage.texts()) == (["hello", "and then"], ["re: hello", "re: and then"])

    @needs()
    async def test_messages_are_read_in_the_order_in_which_they_were_sent(self, stage: Stage) -> None:
        await stage.start()
        words = [f"message {number}" for number in range(6)]
        for text in words:
            await stage.driver.say(text)
        await stage.answered(6)
        assert stage.read() == words

    @needs("shared bots")
    async def test_a_server_that_no_longer_has_the_channel_takes_no_message(self, stage: Stage) -> None:
        await stage.start()
        ours, stage.adapter.is_ours = stage.adapter.is_ours, lambda: False
        sent = await stage.driver.say("hello")
        await stage.pass_time(3)
        assert await stage.statuses() == {}
        assert stage.lacks("acknowledgements") or not stage.driver.acknowledged(sent)
        stage.adapter.is_ours = ours
        await stage.until(stage.shows("re: hello"))
        assert stage.read() == ["hello"]

    @needs()
    async def test_a_message_that_can_never_be_stored_is_a_dead_letter_and_the_channel_goes_on(
        self, stage: Stage
    ) -> None:
        await stage.start()
        stage.door.before = [InvalidArgument("no store takes it")]
        await stage.driver.say("hello")
        await stage.driver.say("and then")
        await stage.until(stage.shows("re: and then"))
        assert stage.read() == ["and then"]
        assert stage.adapter.liveness.refused == 1
        if not stage.lacks("dead letters"):
            [row] = await stage.dead(1)
            assert row["error"] == "an invalid update: no store takes it"
            assert "hello" in row["text"]

    @needs()
    async def test_an_update_that_cannot_be_read_is_a_dead_letter_and_the_channel_stays_connected(
        self, stage: Stage
    ) -> None:
        await stage.start()
        refused = stage.adapter.liveness.refused
        await stage.driver.malformed()
        await stage.driver.say("hello")
        await stage.until(stage.shows("re: hello"))
        assert stage.adapter.liveness.refused == refused + 1
        assert stage.adapter.liveness.shown()["state"] == "connected"
        if not stage.lacks("dead letters"):
            [row] = await stage.dead(1)
            assert row["error"].startswith("an invalid update: ")
            assert "sevenfold" in row["text"]

    @needs()
    async def test_an_update_that_meets_a_defect_is_a_dead_letter_and_the_channel_goes_on_degraded(
        self, stage: Stage
    ) -> None:
        await stage.start()
        poison = await stage.driver.say("poison")
        await stage.driver.say("hello")
        await stage.until(stage.shows("re: hello"))
        if stage.lacks("dead letters"):
            return
        [row] = await stage.dead(1)
        assert row["error"] == "an update caused a defect: TypeError"
        assert "poison" in row["text"]
        assert stage.lacks("acknowledgements") or stage.driver.acknowledged(poison)
        fields = stage.adapter.liveness.shown()
        assert (fields["state"], fields["error_code"]) == ("degraded", "updates_set_aside")
        assert stage.door.handed.count("poison") == 3

    @needs()
    async def test_a_message_that_comes_while_the_server_is_stopped_is_answered_after_the_start(
        self, stage: Stage
    ) -> None:
        await stage.start()
        await stage.driver.say("before")
        await stage.answered(1)
        await stage.stop()
        await stage.driver.say("meanwhile")
        before = stage.texts()
        await stage.start()
        await stage.answered(2)
        assert stage.read() == ["before", "meanwhile"]
        assert [*dict.fromkeys([*before, *stage.texts()])] == ["re: before", "re: meanwhile"]
        assert stage.texts().count("re: meanwhile") == 1

    @needs()
    async def test_a_process_that_dies_between_the_commit_and_the_acknowledgement_answers_once(
        self, stage: Stage
    ) -> None:
        await stage.start()
        stage.agent.free.clear()
        stage.door.after = [StoreUnavailable("the process is gone")] * 1_000
        sent = await stage.driver.say("hello")
        await stage.until_stored(1)
        await stage.stop()
        assert stage.lacks("acknowledgements") or not stage.driver.acknowledged(sent)
        stage.agent.free.set()
        await stage.start()
        await stage.until(stage.shows("re: hello"))
        await stage.until(lambda: stage.lacks("acknowledgements") or stage.driver.acknowledged(sent))
        await stage.answered(1)
        assert stage.texts() == ["re: hello"]

    @needs("edits")
    async def test_an_edit_before_the_agent_has_read_the_message_is_what_the_agent_reads(
        self, stage: Stage
    ) -> None:
        await stage.start()
        await stage.hold()
        sent = await stage.driver.say("seocnd")
        await stage.until_stored(2)
        await stage.driver.edit(sent, "second")
        # messages are processed in order: when this message is stored, the edit has been processed
        await stage.driver.say("third")
        await stage.until_stored(3)
        stage.agent.free.set()
        await stage.answered(3)
        assert stage.read() == ["first", "second", "third"]

    @needs("deletes")
    async def test_a_message_that_is_deleted_before_the_agent_has_read_it_is_not_read(
        self, stage: Stage
    ) -> None:
        await stage.start()
        await stage.hold()
        sent = await stage.driver.say("second")
        await stage.until_stored(2)
        stage.door.changes = [StoreUnavailable("away")]  # the platform then sends the update again
        await stage.driver.delete(sent)
        await stage.driver.say("third")
        await stage.until_stored(3)
        stage.agent.free.set()
        await stage.answered(3)
        assert stage.read() == ["first", "third"]
        assert (await stage.statuses())[InboundStatus.RETRACTED] == 1

    @needs("drafts")
    async def test_an_answer_grows_in_one_message(self, stage: Stage) -> None:
        await stage.start()
        go_on = asyncio.Event()
        more = "and that it goes on for a good while yet "

        async def act(activation: RunActivation, sink: EventSink) -> AgentRunResult:
            await sink.emit(TextDelta(delta=BEGINNING))
            await go_on.wait()
            await sink.emit(TextDelta(delta=more))
            await stage.agent.free.wait()
            return answered(activation, f"{BEGINNING}{more}until its end.")

        stage.agent.act = act
        stage.agent.free.clear()
        await stage.driver.say("hello")
        await stage.until(lambda: stage.texts() == [BEGINNING.strip()])
        [first] = stage.driver.shown()
        go_on.set()
        await stage.until(lambda: stage.texts()[0].endswith("a good while yet"))
        stage.agent.free.set()
        await stage.answered(1)
        [last] = stage.driver.shown()
        assert last.id == first.id
        assert last.text.endswith("until its end.")

    @needs()
    async def test_a_long_answer_comes_in_parts_that_fit_and_loses_no_word(self, stage: Stage) -> None:
        await stage.start()
        capabilities = stage.adapter.capabilities
        most = 5_000 if stage.lacks("parts") else capabilities.limit
        words = [f"word{number}" for number in range(int(most * 2.5) // 9)]

        async def act(activation: RunActivation, sink: EventSink) -> AgentRunResult:
            return answered(activation, " ".join(words))

        stage.agent.act = act
        await stage.driver.say("at length, please")
        await stage.answered(1)
        parts = stage.texts()
        assert " ".join(parts).split() == words
        assert (len(parts) > 2) is not stage.lacks("parts")
        assert all(capabilities.unit.measure(part) <= capabilities.limit for part in parts)

    @needs("strangers")
    async def test_a_stranger_is_refused_politely_and_not_for_each_message(self, stage: Stage) -> None:
        await stage.start()
        for number in range(5):
            await stage.driver.say(f"let me in {number}", EVE)
        await stage.until_stored(5)
        await stage.driver.say("hello")
        await stage.until(stage.shows("re: hello"))
        lines = [text for text in stage.texts() if text != "re: hello"]
        assert len(lines) == 1
        assert lines[0].startswith("I do not know you yet.")
        assert stage.read() == ["hello"]

    @needs("groups")
    async def test_two_people_in_a_group_are_told_apart_and_the_rest_is_not_read(self, stage: Stage) -> None:
        await stage.start()
        await stage.driver.say("mine", ANN, Extra(group=True))
        await stage.driver.say("among ourselves", BEN, Extra(group=True, mention=False))
        await stage.driver.say("and mine", BEN, Extra(group=True))
        await stage.answered(2)
        assert sorted(stage.read()) == ["and mine", "mine"]
        people = {str(sender) for senders in stage.agent.senders for sender in senders}
        assert people == {stage.driver.people[ANN], stage.driver.people[BEN]}
        assert sorted(stage.texts()) == ["re: and mine", "re: mine"]

    @needs("limits")
    async def test_the_time_that_a_platform_asks_for_is_waited(self, stage: Stage) -> None:
        await stage.start()
        stage.driver.limit()
        await stage.driver.say("hello")
        await stage.until(lambda: stage.driver.tries() == 1)
        await stage.pass_time(stage.driver.wait_s - 2)
        assert stage.driver.tries() == 1
        stage.driver.lift()
        await stage.until(stage.shows("re: hello"))
        await stage.answered(1)
        assert stage.texts() == ["re: hello"]

    @needs("refusals")
    async def test_an_answer_that_is_refused_for_good_is_a_dead_letter_and_the_next_one_is_said(
        self, stage: Stage
    ) -> None:
        await stage.start()
        stage.driver.refuse()
        await stage.driver.say("hello")
        [row] = await stage.dead(1)
        stage.driver.lift()
        assert "re: hello" in row["text"]
        await stage.driver.say("and then")
        await stage.until(stage.shows("re: and then"))
        assert (await stage.statuses())[InboundStatus.FAILED] == 1

    @needs("lost answers")
    async def test_an_answer_of_which_nobody_knows_is_said_once_or_marked_when_it_is_said_again(
        self, stage: Stage
    ) -> None:
        await stage.start()
        stage.driver.lose_answer()
        await stage.driver.say("hello")
        await stage.answered(1)
        first, *again = stage.texts()
        assert first.removeprefix(f"{wording.POSSIBLE_DUPLICATE}\n") == "re: hello"
        assert all(text == f"{wording.POSSIBLE_DUPLICATE}\nre: hello" for text in again)
        assert len(again) <= 1

    @needs("outages")
    async def test_after_an_outage_of_the_platform_what_was_owed_is_said_and_what_comes_is_answered(
        self, stage: Stage
    ) -> None:
        await stage.start()
        await stage.hold()
        await stage.driver.go_away()
        stage.agent.free.set()
        await stage.until(lambda: stage.adapter.liveness.state is not AdapterState.CONNECTED)
        await stage.pass_time(5)
        await stage.driver.come_back()
        await stage.until(lambda: any(text.endswith("re: first") for text in stage.texts()))
        await stage.driver.say("and then")
        await stage.until(
            stage.shows("re: and then"), lambda: stage.adapter.liveness.state is AdapterState.CONNECTED
        )
        unmarked = [text for text in stage.texts() if wording.POSSIBLE_DUPLICATE not in text]
        assert sum("re: first" in text for text in unmarked) <= 1

    @needs("outages")
    async def test_a_platform_that_is_away_at_the_start_is_connected_when_it_comes_back(
        self, stage: Stage
    ) -> None:
        await stage.driver.go_away()
        await stage.start()
        assert stage.adapter.liveness.state is AdapterState.FAILED
        assert stage.adapter.liveness.retryable
        await stage.driver.come_back()
        await stage.until(lambda: stage.adapter.liveness.state is AdapterState.CONNECTED)
        await stage.driver.opened(stage.adapter)
        await stage.driver.say("hello")
        await stage.until(stage.shows("re: hello"))

    @needs("outages", "shared bots")
    async def test_a_server_that_stood_still_asks_for_nothing_while_another_has_the_channel(
        self, stage: Stage
    ) -> None:
        await stage.start()
        await stage.driver.go_away()
        await stage.until(lambda: stage.adapter.liveness.state is not AdapterState.CONNECTED)
        ours, stage.adapter.is_ours = stage.adapter.is_ours, lambda: False
        await stage.driver.come_back()
        await stage.pass_time(5)
        looks = stage.driver.looks()
        await stage.pass_time(200)
        assert stage.driver.looks() == looks
        stage.adapter.is_ours = ours
        await stage.driver.say("hello")
        await stage.until(
            stage.shows("re: hello"), lambda: stage.adapter.liveness.state is AdapterState.CONNECTED
        )

    @needs("credentials")
    async def test_a_credential_that_is_refused_is_named_and_not_shown(self, stage: Stage) -> None:
        with Logged() as logged:
            wrong = stage.driver.secrets[0][:-4] + "xxxx"
            adapter = stage.driver.adapter(stage.clock, secret=wrong)
            try:
                await adapter.connect()
            except CredentialRefused as refused:
                error = refused
            else:
                raise AssertionError("connect() accepted a wrong credential")
            assert error.remedy
            text = f"{error!r} {error.as_dict()} {error.__cause__!r} {logged.text()}"
            assert wrong not in f"{text} {adapter!r} {adapter.config!r} {adapter.liveness!r}"
            await adapter.disconnect()

    @needs()
    async def test_no_secret_and_no_words_are_logged(self, stage: Stage) -> None:
        with Logged() as logged:
            await stage.start()
            stage.door.before = [StoreUnavailable("away"), InvalidArgument("never")]
            await stage.driver.say("private words")
            await stage.driver.send_again()
            await stage.driver.send_again()
            await stage.driver.say("private again")
            await stage.until(stage.shows("re: private again"))
            if not stage.lacks("outages"):
                await stage.driver.go_away()
                await stage.until(lambda: stage.adapter.liveness.state is not AdapterState.CONNECTED)
                await stage.driver.come_back()
            await stage.stop()
            assert "private" not in logged.text("postroom")
            written = f"{logged.text()} {stage.adapter!r} {stage.adapter.config!r} {stage.adapter.liveness!r}"
            for secret in stage.driver.secrets:
                assert secret not in written

    @needs()
    async def test_disconnecting_leaves_nothing_behind_and_may_be_done_twice(self, stage: Stage) -> None:
        before = asyncio.all_tasks()
        await stage.start()
        await stage.driver.say("hello")
        await stage.until(stage.shows("re: hello"))
        await stage.stop()
        await stage.adapter.disconnect()
        assert {item for item in asyncio.all_tasks() - before if "channel" in item.get_name()} == set()
        assert stage.adapter.liveness.state is AdapterState.STOPPED


class Logged(logging.Handler):
    """Collects all log records within a `with` block."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store a log record, which the test can read."""
        self._records.append(record)

    def text(self, name: str = "") -> str:
        """Return the log lines of the loggers whose names begin with `name`."""
        chosen = [record for record in self._records if record.name.startswith(name)]
        return "\n".join(
            self.format(log_record) if not name else log_record.getMessage() for log_record in chosen
        )

    def __enter__(self) -> "Logged":
        self._before = logging.root.level
        logging.root.addHandler(self)
        logging.root.setLevel(logging.DEBUG)
        return self

    def __exit__(self, *_: object) -> None:
        logging.root.removeHandler(self)
        logging.root.setLevel(self._before)
