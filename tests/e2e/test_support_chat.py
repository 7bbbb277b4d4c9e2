"""`examples/support_chat.py` as people run it: separate processes on PostgreSQL, and the OpenAI SDK to an endpoint."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from e2e.running import START_PATIENCE, plain_environment
from runtime.endpoint import END, FakeEndpoint, chunk, fragment

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "support_chat.py"


class Program:
    """One process of the example, read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdout is not None
        self._lines = process.stdout

    async def line(self) -> str:
        async with asyncio.timeout(START_PATIENCE):
            return (await self._lines.readline()).decode().strip()

    async def rest(self) -> list[str]:
        """Return what else it says until it ends well."""
        async with asyncio.timeout(START_PATIENCE):
            said = (await self._lines.read()).decode().splitlines()
            assert await self.process.wait() == 0
        return said

    async def end(self, sign: signal.Signals) -> int:
        self.process.send_signal(sign)
        async with asyncio.timeout(START_PATIENCE):
            return await self.process.wait()


@pytest.fixture
async def endpoint() -> AsyncIterator[FakeEndpoint]:
    async with FakeEndpoint().serving() as serving:
        yield serving


@pytest.fixture
async def environment(
    postgres_dsn: str, tmp_path: Path, endpoint: FakeEndpoint
) -> AsyncIterator[dict[str, str]]:
    name = f"support_{uuid4().hex}"
    async with await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True) as session:
        await session.execute(f"CREATE DATABASE {name}")
        yield plain_environment(tmp_path) | {
            "DATABASE_URL": postgres_dsn.rpartition("/")[0] + f"/{name}",
            "OPENAI_BASE_URL": endpoint.url,
            "OPENAI_API_KEY": "none",
        }
        await session.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def running(environment: dict[str, str], *words: str) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLE, *words, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_customer_steers_a_person_agrees_and_a_killed_worker_is_missed_by_nobody(
    environment: dict[str, str], endpoint: FakeEndpoint
) -> None:
    told_more = asyncio.Event()
    call = fragment(id="call-1", name="refund", args='{"order": "7", "cents": 4000}')
    endpoint.answers = [
        [chunk(content="One moment. "), told_more, chunk(content="Which lamp?"), chunk("stop"), END],
        [call, chunk("tool_calls"), END],
        [chunk(content="You have your money back."), chunk("stop"), END],
    ]
    async with (
        running(environment, "work") as worker,
        running(environment, "say", "ada", "My lamp is broken.") as first,
    ):
        run = (await first.line()).removeprefix("run ")
        assert await first.line() == "1 text One moment."
        async with running(environment, "say", "ada", "The blue one.") as second:
            assert await second.line() == f"run {run}"
            told_more.set()
            question = 'question call-1 The agent wants to use refund: {"order": "7", "cents": 4000}'
            assert [line.partition(" ")[2] for line in await first.rest()] == ["text Which lamp?", question]
            cursor = (await second.rest())[-1].split()[0]
        said = [one["content"] for one in endpoint.bodies[1]["messages"] if one["role"] == "user"]
        assert said == ["My lamp is broken.", "The blue one."]
        assert await worker.end(signal.SIGKILL) == -signal.SIGKILL

    async with running(environment, "decide", run, "call-1", "yes") as decision:
        assert await decision.rest() == []
    async with running(environment, "work") as worker, running(environment, "follow", run, cursor) as reader:
        text, *end = await reader.rest()
        assert text.partition(" ")[2] == "text You have your money back."
        both = "end One moment. Which lamp?\n\nYou have your money back."  # each message has its answer
        assert "\n".join(end).partition(" ")[2] == both
        assert await worker.end(signal.SIGINT) == 0
    assert endpoint.bodies[2]["messages"][-1]["content"] == '{"refunded":4000,"order":"7"}'


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
