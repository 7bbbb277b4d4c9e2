"""PostgreSQL under faults: cut connections, a server that is killed, sessions that wait for each other.

A proxy stands between store and server where a connection has to break at a chosen moment.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from conformance.run_backends import postgres_dsn
from postgres_schemas import a_schema, postgres_is_there
from postgres_server import PostgresServer, is_given
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import CommitUnknown, PostroomError, StaleClaim, StoreUnavailable
from postroom.contracts.events import EventScope
from postroom.contracts.messages import Message
from postroom.contracts.run_stores import ClaimRequest, Delivery, RunStores, ThreadCommit
from postroom.stores.postgres import PostgresRunStores, database
from postroom.stores.postgres.driver import Clash, Connection, Contended, connect
from postroom.stores.postgres.migrate import SHIPPED
from postroom.testing import ManualClock
from postroom.testing.conformance import run_given as given

__all__ = ["a_schema", "postgres_dsn", "postgres_is_there"]
pytestmark = pytest.mark.usefixtures("postgres_is_there")
LEASE = 30_000


class Proxy:
    """Passes bytes on between clients and a server, and breaks what it is told to break."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self.cut_before: bytes | None = None
        """Cut the connection on which a client says this, before the server hears it."""
        self.cut_after: bytes | None = None
        """Cut it when the server has heard it and before the client gets the answer."""
        self.swallow = False
        """Take what the server says and pass nothing on."""
        self.refuse = False
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        there, onward = await asyncio.open_connection(*self._to)
        pair = writer, onward
        self._pairs.add(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, onward, pair, asked=True))
                group.create_task(self._pass_on(there, writer, pair, asked=False))
        finally:
            self._pairs.discard(pair)
            for side in pair:
                side.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        asked: bool,
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if asked and self.cut_before and self.cut_before in data:
                    self.cut_before = None
                    return self._cut(pair)
                if not asked and self.swallow:
                    continue
                writer.write(data)
                await writer.drain()
                if asked and self.cut_after and self.cut_after in data:
                    self.cut_after = None
                    return self._cut(pair)  # the server goes on with what it has heard
        except ConnectionError:
            pass
        return self._cut(pair, count=False)

    def _cut(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter], *, count: bool = True) -> None:
        self.cuts += count
        pair[0].transport.abort()
        pair[1].close()

    def cut_all(self) -> None:
        for pair in tuple(self._pairs):
            self._cut(pair)


@asynccontextmanager
async def a_proxy(dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    parts = urlsplit(dsn)
    proxy = Proxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    yield proxy, parts._replace(netloc=f"{user}127.0.0.1:{port}").geturl()
    server.close()
    proxy.cut_all()
    await server.wait_closed()


@pytest_asyncio.fixture
async def proxied(
    postgres_dsn: str, a_schema: str, clock: ManualClock
) -> AsyncIterator[tuple[PostgresRunStores, Proxy]]:
    async with a_proxy(postgres_dsn) as (proxy, dsn):
        stores = await PostgresRunStores.open(dsn, schema=a_schema, clock=clock, pool_size=2)
        yield stores, proxy
        await stores.close()


@pytest_asyncio.fixture
async def stores(postgres_dsn: str, a_schema: str, clock: ManualClock) -> AsyncIterator[PostgresRunStores]:
    opened = await PostgresRunStores.open(postgres_dsn, schema=a_schema, clock=clock)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def session(postgres_dsn: str, a_schema: str, stores: PostgresRunStores) -> AsyncIterator[Connection]:
    opened = await connect(postgres_dsn, a_schema)
    yield opened
    await opened.end()


def said(name: str) -> ThreadCommit:
    return ThreadCommit(thread_id="t", messages=(Message.user(name, id=name),), events=(given.event(),))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return when it is so; what is waited for happens on the server, which tells nobody."""
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0)


# Answers that are lost


async def test_a_commit_that_was_not_answered_is_unknown_and_was_made(
    proxied: tuple[PostgresRunStores, Proxy],
) -> None:
    stores, proxy = proxied
    await stores.coordinator.commit(said("m1"))
    proxy.cut_after = b"COMMIT"
    with pytest.raises(CommitUnknown):
        await stores.coordinator.commit(said("m2"))

    async def made() -> bool:
        return len(await stores.threads.load_messages("t") or ()) == 2

    await until(made)
    assert await stores.events.count(EventScope.thread("t")) == 2


async def test_a_commit_that_was_not_heard_is_unknown_and_was_not_made(
    proxied: tuple[PostgresRunStores, Proxy],
) -> None:
    stores, proxy = proxied
    await stores.coordinator.commit(said("m1"))
    proxy.cut_before = b"COMMIT"
    with pytest.raises(CommitUnknown):
        await stores.coordinator.commit(said("m2"))
    assert len(await stores.threads.load_messages("t") or ()) == 1
    assert (await stores.coordinator.commit(said("m2"))).message_count == 2
    assert await stores.events.count(EventScope.thread("t")) == 2


async def test_a_transaction_that_breaks_before_its_commit_is_known_to_have_changed_nothing(
    proxied: tuple[PostgresRunStores, Proxy],
) -> None:
    stores, proxy = proxied
    await stores.coordinator.commit(said("m1"))
    proxy.cut_after = b"needle"
    with pytest.raises(StoreUnavailable):
        await stores.coordinator.commit(said("needle"))
    assert len(await stores.threads.load_messages("t") or ()) == 1
    assert (await stores.coordinator.commit(said("needle"))).message_count == 2


@pytest.mark.parametrize("heard", [True, False])
async def test_a_statement_that_was_not_answered_is_unknown_and_may_be_repeated(
    proxied: tuple[PostgresRunStores, Proxy], heard: bool
) -> None:
    stores, proxy = proxied
    await stores.dispatches.ack((await given.claimed(stores, "first", thread="u")).claim_proof)
    owned = await given.claimed(stores, "needle")
    if heard:
        proxy.cut_after = b"needle"
    else:
        proxy.cut_before = b"needle"
    with pytest.raises(CommitUnknown):
        await stores.dispatches.ack(owned.claim_proof)
    if heard:

        async def acked() -> bool:
            return (await given.loaded(stores, "needle")).status is RunDispatchStatus.ACKED

        await until(acked)
        with pytest.raises(StaleClaim):
            await stores.dispatches.ack(owned.claim_proof)
    else:
        assert (await stores.dispatches.ack(owned.claim_proof)).status is RunDispatchStatus.ACKED


async def test_a_look_that_was_not_answered_is_unavailable_and_the_next_one_works(
    proxied: tuple[PostgresRunStores, Proxy],
) -> None:
    stores, proxy = proxied
    await given.enqueued(stores, "needle")
    await given.loaded(stores, "needle")
    proxy.cut_after = b"needle"
    with pytest.raises(StoreUnavailable):
        await stores.dispatches.load_dispatch("needle")
    assert proxy.cuts == 1
    assert (await given.loaded(stores, "needle")).dispatch_id == "needle"


async def test_a_server_that_is_out_of_reach_for_a_while_is_used_again(
    proxied: tuple[PostgresRunStores, Proxy],
) -> None:
    stores, proxy = proxied
    await given.enqueued(stores, "d1")
    proxy.refuse = True
    proxy.cut_all()
    for call in (stores.dispatches.load_dispatch("d1"), given.enqueued(stores, "d2")):
        with pytest.raises((StoreUnavailable, CommitUnknown)):
            await call
    proxy.refuse = False
    assert (await given.loaded(stores, "d1")).dispatch_id == "d1"
    assert (await given.enqueued(stores, "d3")).dispatch_id == "d3"


@pytest.mark.parametrize(("writes", "kind"), [(False, StoreUnavailable), (True, CommitUnknown)])
async def test_a_server_that_says_nothing_any_more_is_not_waited_for_for_ever(
    postgres_dsn: str, a_schema: str, writes: bool, kind: type[PostroomError]
) -> None:
    async with a_proxy(postgres_dsn) as (proxy, dsn), asyncio.timeout(20):
        session = await connect(dsn, a_schema, answer_within=timedelta(milliseconds=100))
        await session.rows("SELECT 1", writes=writes)
        proxy.swallow = True
        with pytest.raises(kind):
            await session.rows("SELECT 1", writes=writes)
        session.cut()


async def test_a_lost_session_for_hints_is_opened_again(
    stores: PostgresRunStores, session: Connection
) -> None:
    hints = stores.place.hints
    async with asyncio.timeout(20):
        await hints.listening()
        await session.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' "
            "AND query LIKE '%' || $1::text || '%'",
            hints.channel,
        )
        while hints.is_listening:
            await asyncio.sleep(0)
        await hints.listening()
        await stores.wakeups.wait(0)
        async with asyncio.TaskGroup() as group:
            woken = group.create_task(stores.wakeups.wait(60_000))
            await session.rows("SELECT pg_notify($1::text, 'w')", hints.channel)
            await woken


# Callers that give up


async def test_a_caller_that_gives_up_leaves_a_session_that_nobody_else_gets(
    stores: PostgresRunStores, session: Connection
) -> None:
    """Held up by another transaction, cut off in the middle: the next one is not answered with its answer."""
    await given.enqueued(stores, "d1")
    await session.run("BEGIN")
    await session.rows("SELECT FROM dispatch_epochs WHERE thread_id = 't' FOR UPDATE")
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        tries = [group.create_task(stores.dispatches.interrupt("t")) for _ in range(10)]

        async def held_up() -> bool:
            [[number]] = await session.rows("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(number >= 5)

        await until(held_up)
        for one in tries:
            one.cancel()
    await session.run("COMMIT")
    assert all(one.cancelled() for one in tries)
    async with asyncio.timeout(20):
        assert (await stores.dispatches.interrupt("t")).new_dispatch_epoch == 1
        for _ in range(20):
            assert await stores.dispatches.current_dispatch_epoch("t") == 1


async def test_a_transaction_that_stands_still_keeps_others_from_its_thread_alone(
    stores: PostgresRunStores, session: Connection
) -> None:
    for thread in ("a", "b", "c"):
        await given.enqueued(stores, f"d-{thread}", thread=thread)
    await session.run("BEGIN")
    await session.rows("SELECT FROM dispatch_epochs WHERE thread_id = 'b' FOR UPDATE")

    async def claims(thread: str) -> bool | None:
        try:
            return await stores.dispatches.claim(thread, "w", lease_ms=LEASE) is not None
        except StoreUnavailable:
            return None

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        tries = [group.create_task(claims(thread)) for thread in ("a", "b", "c")]
    assert [one.result() for one in tries] == [True, None, True]
    await session.run("COMMIT")
    assert await claims("b")


async def test_what_is_given_back_while_a_commit_is_under_way_is_before_what_came_later(
    postgres_dsn: str, a_schema: str
) -> None:
    """What is due is decided by the clock as it is when the claim is made, not when the commit began.

    Else the older dispatch, due since a moment ago, would be passed over for a newer one.
    """
    stores = await PostgresRunStores.open(postgres_dsn, schema=a_schema)
    session = await connect(postgres_dsn, a_schema)
    now = stores.clock.now()
    await stores.coordinator.commit(ThreadCommit(thread_id="t"))
    for place, name in enumerate(("older", "newer")):
        one = RunDispatch.queued(name, "t", f"r-{name}", created_at=now - 1_000 + place)
        await stores.dispatches.enqueue(one)
    assert (await stores.dispatches.claim("t", "w", lease_ms=LEASE)).dispatch_id == "older"
    await session.run("BEGIN")
    await session.rows("SELECT FROM run_threads WHERE thread_id = 't' FOR UPDATE")
    third = RunDispatch.queued("newest", "t", "r-newest", created_at=now)
    delivery = Delivery(dispatch=third, claim=ClaimRequest(consumer="w", lease_ms=LEASE))
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        committing = group.create_task(
            stores.coordinator.commit(ThreadCommit(thread_id="t", delivery=delivery))
        )

        async def held_up() -> bool:
            [[number]] = await session.rows("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(number)

        await until(held_up)
        await session.rows(
            "UPDATE run_dispatches SET status = 'Queued', claim_token = NULL, claimed_by = NULL,"
            " claimed_at = NULL, lease_until = NULL,"
            " available_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
            " WHERE dispatch_id = 'older'"
        )
        await session.run("COMMIT")
    assert committing.result().claimed.dispatch_id == "older"
    await session.end()
    await stores.close()


# Transactions that wait for each other


async def test_who_gave_way_in_a_deadlock_simply_does_it_again(
    stores: PostgresRunStores, session: Connection
) -> None:
    for name in ("a", "b"):
        await given.said(stores, f"m-{name}", thread=name)
    await session.run("SET deadlock_timeout = '1h'")  # so that the store is the one to give way
    await session.run("BEGIN")
    await session.rows("SELECT FROM dispatch_epochs WHERE thread_id = 'b' FOR UPDATE")
    tries = 0
    both_held = asyncio.Event()

    async def both(its: Connection) -> int:
        nonlocal tries
        tries += 1
        if tries > 1:  # or it might be quicker than the other, and give way once more
            await both_held.wait()
        for name in ("a", "b"):
            await its.rows("SELECT FROM dispatch_epochs WHERE thread_id = $1 FOR UPDATE", name)
        return tries

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        done = group.create_task(stores.place.database.transact(both))

        async def waiting() -> bool:
            [[number]] = await session.rows("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(number)

        await until(waiting)
        await session.rows("SELECT FROM dispatch_epochs WHERE thread_id = 'a' FOR UPDATE")
        both_held.set()
        await session.run("COMMIT")
    assert done.result() == 2


async def test_who_gives_way_again_and_again_is_told_so(stores: PostgresRunStores) -> None:
    tries = 0

    async def never(its: Connection) -> None:
        nonlocal tries
        tries += 1
        raise Contended("the others came first")

    with pytest.raises(StoreUnavailable, match="the others came first"):
        await stores.place.database.transact(never)
    assert tries == database.TRIES


async def test_a_rule_of_the_schema_that_stands_against_it_is_told_in_the_end(
    stores: PostgresRunStores,
) -> None:
    async def never(its: Connection) -> None:
        raise Clash("a_rule", "two of them")

    with pytest.raises(PostroomError, match="two of them") as raised:
        await stores.place.database.transact(never)
    assert raised.value.value == "a_rule"


# A server that is killed


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    if is_given():
        pytest.skip("the server of TEST_DATABASE_URL is not ours to kill")
    with PostgresServer() as server:
        server.start()
        yield server


async def test_what_was_acknowledged_survives_the_kill_of_the_server(
    own_server: PostgresServer, clock: ManualClock
) -> None:
    stores = await PostgresRunStores.open(own_server.dsn, clock=clock)
    acknowledged: list[str] = []
    refused: list[PostroomError] = []
    enough = asyncio.Event()

    async def work(task: int) -> None:
        for number in range(10_000):
            name = f"{task}-{number}"
            try:
                await stores.dispatches.enqueue(
                    RunDispatch.queued(name, f"t{task}", f"r{name}", created_at=number)
                )
                await stores.coordinator.commit(
                    ThreadCommit(thread_id=f"t{task}", messages=(Message.user("x", id=name),))
                )
            except (StoreUnavailable, CommitUnknown) as error:
                refused.append(error)
                return
            acknowledged.append(name)
            if len(acknowledged) >= 200:
                enough.set()

    async with asyncio.timeout(50):
        async with asyncio.TaskGroup() as group:
            for task in range(16):
                group.create_task(work(task))
            await enough.wait()
            await asyncio.to_thread(own_server.kill)
        assert len(refused) == 16
        with pytest.raises(StoreUnavailable):
            await stores.dispatches.load_dispatch("0-0")
        await asyncio.to_thread(own_server.start)
        await there_again(stores)
        for name in acknowledged:
            assert await stores.dispatches.load_dispatch(name) is not None
        for task in range(16):
            thread = await stores.threads.load_thread(f"t{task}")
            messages = await stores.threads.load_messages(f"t{task}") or ()
            assert (thread.message_count if thread else 0) == len(messages)
            there = {message.id for message in messages}
            assert {name for name in acknowledged if name.startswith(f"{task}-")} <= there
        owned = await stores.dispatches.claim("t0", "w", lease_ms=LEASE)
        assert owned is not None
        await stores.close()


async def there_again(stores: RunStores) -> None:
    """Return when the stores answer again by themselves."""

    async def answers() -> bool:
        try:
            await stores.dispatches.count_by_status()
        except (StoreUnavailable, CommitUnknown):
            return False
        return True

    await until(answers)


async def test_a_server_that_is_stopped_and_started_is_used_again(
    own_server: PostgresServer, clock: ManualClock
) -> None:
    stores = await PostgresRunStores.open(own_server.dsn, clock=clock)
    await given.claimed(stores)
    await asyncio.to_thread(own_server.stop)
    with pytest.raises(StoreUnavailable):
        await stores.dispatches.load_dispatch("d1")
    with pytest.raises(StoreUnavailable):
        await PostgresRunStores.open(own_server.dsn)
    await asyncio.to_thread(own_server.start)
    async with asyncio.timeout(20):
        await there_again(stores)
        await stores.dispatches.ack((await given.loaded(stores)).claim_proof)
        await stores.close()


# Several processes


OPEN = """
import asyncio, json, sys
from postroom.stores.postgres import PostgresRunStores

async def main():
    stores = await PostgresRunStores.open(sys.argv[1], schema=sys.argv[2])
    counts = await stores.dispatches.count_by_status()
    await stores.close()
    print(json.dumps(sum(counts.values())))

sys.stdin.read()
asyncio.run(main())
"""


async def test_processes_that_start_at_once_make_the_schema_once(postgres_dsn: str, a_schema: str) -> None:
    def opened_at_once() -> list[str]:
        words = [sys.executable, "-c", OPEN, postgres_dsn, a_schema]
        started = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        for one in started:
            assert one.stdin is not None
            one.stdin.close()
        said = []
        for one in started:
            assert one.stdout is not None
            with one.stdout as lines:
                said.append(lines.read())
            assert one.wait(30) == 0
        return said

    assert [json.loads(text) for text in await asyncio.to_thread(opened_at_once)] == [0, 0, 0, 0]
    session = await connect(postgres_dsn, a_schema)
    found = await session.rows("SELECT version FROM schema_migrations")
    assert [row[0] for row in found] == [step.version for step in SHIPPED]
    await session.end()
