"""PostgreSQL is restarted under steps, failures, results, answers and schedules: nothing is repeated, nothing waits on.

Whether an outage is shorter or longer than the lease of a run: a function waits until its claim is renewed.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Literal

import psycopg
import pytest

from machine import PATIENCE, Bound
from postgres_server import PostgresServer, is_given, missing_postgres
from postroom import GiveUp, Mailbox, MailboxConfig, RunUnsuccessful
from postroom.embedded.handle import RunEvent, RunHandle, State
from postroom.embedded.running import Run

pytestmark = pytest.mark.long
GOES_ON_WITHIN = 2.0
"""Seconds after the start of the database in which all waiting work continues; 0.8 s to 1.1 s were measured."""
CONFIG = MailboxConfig(
    lease_ms=90_000, lease_renewal_interval=timedelta(seconds=10), default_retry_delay_ms=0
)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if is_given() or missing_postgres():
        pytest.skip(missing_postgres() or "the server of TEST_DATABASE_URL is not ours to stop")
    with PostgresServer() as server:
        server.start()
        yield server


@dataclass
class Work:
    """The work of runs, selected by the first word of their input, and a record of it."""

    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    calls: Counter[str] = field(default_factory=Counter)
    executions: Counter[str] = field(default_factory=Counter)

    async def __call__(self, run: Run) -> str:
        kind = run.text
        self.executions[run.thread_id] += 1
        if kind == "tick":
            self.calls[f"tick of {run.id}"] += 1
            return "ticked"
        if kind == "asks":
            answer = await run.ask("Ship it?", name="ship")
            return f"told {answer.text}"
        if kind == "sleeps":
            await run.step("before", self.called, f"{run.thread_id} before")
            await self.waits(run)
            await run.sleep(timedelta(milliseconds=1))
            return "slept"
        if kind == "steps":
            for number in range(3):
                await run.step(f"s{number}", self.effect, run, number)
            return "stepped"
        await self.waits(run)
        if kind == "fails":
            raise GiveUp("it cannot work")
        if kind == "fails once" and run.attempt == 1:
            raise RuntimeError("the first attempt fails")
        return "answered"

    @property
    def ticks(self) -> int:
        """How many runs of the schedule have executed."""
        return sum(name.startswith("tick") for name in self.calls)

    async def called(self, name: str) -> None:
        self.calls[name] += 1

    async def effect(self, run: Run, number: int) -> int:
        """An act that must happen once, and ends while the database is unavailable."""
        self.calls[f"{run.thread_id} s{number}"] += 1
        if number == 1:
            await self.waits(run)
        return number

    async def waits(self, run: Run) -> None:
        self.begun.release()
        await self.goes_on.wait()


_MOMENT = 0.01
KINDS = ("steps", "fails", "fails once", "result", "sleeps")


@dataclass
class Delay:
    """How much later than asked this process was woken: what others on the machine take from it."""

    seconds: float = 0.0

    async def measure(self) -> None:
        while True:
            began = monotonic()
            await asyncio.sleep(_MOMENT)
            self.seconds += max(monotonic() - began - 2 * _MOMENT, 0)


def taken_away(server: PostgresServer, how: str) -> None:
    """End the database, or have it refuse writes, as a standby does until it takes over."""
    match how:
        case "killed":
            server.kill()
        case "stopped":
            server.stop()
        case _:
            refuse_writes(server, "on")


def given_back(server: PostgresServer, how: str) -> None:
    """Start the database again, or have it accept writes."""
    if how == "read-only":
        refuse_writes(server, "off")
    else:
        server.start()


def refuse_writes(server: PostgresServer, switch: Literal["on", "off"]) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("SET default_transaction_read_only = off")
        session.execute(b"ALTER SYSTEM SET default_transaction_read_only = " + switch.encode())
        session.execute("SELECT pg_reload_conf()")
    # A new session sees the change once every other session has been signalled.
    bound, found = Bound(PATIENCE), ""
    while found != switch:
        assert not bound.has_passed(), "the database does not read its configuration"
        with psycopg.connect(server.dsn) as session:
            found = session.info.parameter_status("default_transaction_read_only") or ""


async def told(handle: RunHandle) -> list[RunEvent]:
    return [event async for event in handle.events()]


async def outcome(handle: RunHandle) -> str:
    try:
        return await handle.result()
    except RunUnsuccessful as error:
        return error.message


async def test_a_short_wait_for_a_result_ends_in_an_outage_as_it_does_without(server: PostgresServer) -> None:
    work = Work()
    async with Mailbox.open(server.dsn, work, schema="outage") as mailbox:
        handle = await mailbox.enqueue("result", "result")
        await work.begun.acquire()
        await asyncio.to_thread(server.stop)
        for timeout in (0, 0.5, 1.5):
            with pytest.raises(TimeoutError, match=f"did not end within {timeout:g} s. The run continues"):
                await handle.result(timeout=timeout)
        await asyncio.to_thread(server.start)
        work.goes_on.set()
        assert await handle.result(timeout=PATIENCE) == "answered"


@pytest.mark.parametrize(
    ("away_s", "ends", "config"),
    [
        (3, "killed", CONFIG),
        (3, "stopped", CONFIG),
        (30, "killed", CONFIG),
        (30, "stopped", CONFIG),
        (35, "killed", MailboxConfig(default_retry_delay_ms=0)),
        (10, "stopped", MailboxConfig(default_retry_delay_ms=0, lease_ms=6_000)),
        (3, "read-only", CONFIG),
        (10, "read-only", MailboxConfig(default_retry_delay_ms=0, lease_ms=6_000)),
    ],
    ids=[
        "3 s, killed",
        "3 s, stopped",
        "30 s, killed",
        "30 s, stopped",
        "a lease by 5 s",
        "a lease by 4 s",
        "3 s, read-only",
        "a lease by 4 s, read-only",
    ],
)
async def test_runs_and_their_readers_ride_out_a_restart(
    server: PostgresServer, away_s: int, ends: str, config: MailboxConfig
) -> None:
    work = Work()
    async with Mailbox.open(server.dsn, work, config=config, schema="outage") as mailbox:
        handles = {kind: await mailbox.enqueue(kind, kind) for kind in KINDS}
        asking = await mailbox.enqueue("asks", "asks")
        for _ in KINDS:
            await work.begun.acquire()
        question = await asked_by(asking)
        await mailbox.schedules.add("often", "ticks", "tick", every=timedelta(seconds=1))
        results = {kind: asyncio.ensure_future(outcome(handle)) for kind, handle in handles.items()}
        readers = {kind: asyncio.ensure_future(told(handle)) for kind, handle in handles.items()}

        await asyncio.to_thread(taken_away, server, ends)
        began = monotonic()
        work.goes_on.set()  # steps, failures, results and sleeps end while nothing can be stored
        answering = asyncio.ensure_future(asking.answer("yes", question_id=question))
        answered = asyncio.ensure_future(outcome(asking))
        await asyncio.to_thread(threading.Event().wait, away_s - (monotonic() - began))  # the outage itself
        waiters = [*results.values(), *readers.values(), answering, answered]
        assert not any(one.done() for one in waiters), "nobody is told of the outage"
        await asyncio.to_thread(given_back, server, ends)
        back, delay, ticked = monotonic(), Delay(), work.ticks
        measuring = asyncio.ensure_future(delay.measure())
        async with asyncio.timeout(PATIENCE):
            said = {kind: await one for kind, one in results.items()}
            await answering
            assert await answered == "told yes"
            logs = {kind: await one for kind, one in readers.items()}
            while work.ticks == ticked:
                await asyncio.sleep(_MOMENT)
        took = monotonic() - back
        measuring.cancel()

        assert said["steps"] == "stepped"
        assert said["result"] == said["fails once"] == "answered"
        assert said["sleeps"] == "slept"
        assert "it cannot work" in said["fails"]
        assert {name: count for name, count in work.calls.items() if count != 1} == {}, "no step twice"
        assert work.executions["steps"] == work.executions["result"] == work.executions["fails"] == 1
        assert work.executions["fails once"] == work.executions["sleeps"] == work.executions["asks"] == 2
        assert all(log[-1].type == "end" for log in logs.values())
        assert (await handles["fails"].status()).state is State.FAILED
        assert took - delay.seconds < GOES_ON_WITHIN, (
            f"{took:.2f} s, {delay.seconds:.2f} s of them for others"
        )


async def asked_by(handle: RunHandle) -> str:
    async with asyncio.timeout(PATIENCE):
        async for event in handle.events():
            if event.type == "question":
                return str(event.data["question_id"])
    raise AssertionError("it asks nothing")
