"""Many agents at once, each in a separate client session: every call succeeds, and the counts are exact."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fastmcp import Client
from sqlalchemy import text

from machine import LONGEST
from mcp_agent_mail.app import build_mcp_server
from mcp_agent_mail.config import clear_settings_cache
from mcp_agent_mail.db import ensure_schema, get_session, reset_database_state
from mcp_agent_mail.storage import clear_repo_cache

pytestmark = pytest.mark.long

T = TypeVar("T")
Tool = Callable[..., Awaitable[Any]]

PROJECT = "/yard/crew"
CREW = 100
MESSAGES = 3
"""Messages that each of the crew writes."""
PATIENCE = 45.0


@pytest.fixture(autouse=True)
def own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database and an archive for each test, named by the environment as callers of the import names do."""
    for name, value in {
        "DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path / 'mail.sqlite3'}",
        "STORAGE_ROOT": str(tmp_path / "archive"),
        "HTTP_HOST": "127.0.0.1",
        "HTTP_PORT": "8765",
        "HTTP_PATH": "/mcp/",
        "APP_ENVIRONMENT": "test",
        "GIT_AUTHOR_NAME": "crew",
        "GIT_AUTHOR_EMAIL": "crew@example.invalid",
        "INLINE_IMAGE_MAX_BYTES": "128",
        "POSTROOM_DATA_DIR": str(tmp_path / "data"),
    }.items():
        monkeypatch.setenv(name, value)
    _forget()
    yield
    _forget()


def _forget() -> None:
    clear_repo_cache()
    reset_database_state()
    clear_settings_cache()


@asynccontextmanager
async def a_session(server: Any) -> AsyncIterator[Tool]:
    """Open a client session; a call of a tool that is refused fails the test."""

    async def tool(name: str, /, **arguments: Any) -> Any:
        result = await client.call_tool(name, arguments)
        found = result.structured_content
        assert isinstance(found, dict), result
        return found["result"] if set(found) == {"result"} else found

    async with Client(server) as client:
        yield tool


async def at_once(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all of them concurrently, within a bound; one failure fails the test."""
    async with asyncio.timeout(PATIENCE * LONGEST), asyncio.TaskGroup() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]


async def number(statement: str) -> int:
    """Return the one number that a statement selects from the database."""
    async with get_session() as session:
        found = (await session.execute(text(statement))).scalar()
    assert isinstance(found, int)
    return found


async def rows(statement: str) -> Sequence[Any]:
    """Return what a statement selects from the database."""
    async with get_session() as session:
        return (await session.execute(text(statement))).all()


async def assert_inboxes_have_no_gap() -> None:
    """Every inbox counts 1, 2, 3, ..."""
    found = await rows("SELECT agent_id, count(seq), min(seq), max(seq) FROM recipients GROUP BY agent_id")
    assert found
    for agent, entries, first, last in found:
        assert (first, last) == (1, entries), f"agent {agent}"


async def assert_nothing_is_double() -> None:
    """No message came twice to anybody, and no two agents of a project bear one name."""
    assert (
        await number("SELECT count(*) - count(DISTINCT message_id || '-' || agent_id) FROM recipients") == 0
    )
    assert await number("SELECT count(*) - count(DISTINCT project_id || '-' || name_key) FROM agents") == 0


async def crew_of(tool: Tool, size: int, *, project: str = PROJECT) -> list[str]:
    """Make a project with agents and return their names."""
    await tool("ensure_project", human_key=project)
    named = [f"Mate{each}" for each in range(size)]
    for name in named:
        await tool("register_agent", project_key=project, program="p", model="m", name=name)
    return named


@dataclass(slots=True)
class Crew:
    """A crowd of agents that goes through its day in step."""

    server: Any
    registered: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(CREW))
    posted: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(CREW))
    written: list[int] = field(default_factory=list)

    async def workday(self, me: int) -> int:
        """Register, write, reserve, read and acknowledge as one agent; return the agent's id."""
        name = f"Mate{me}"
        mine = {"project_key": PROJECT, "agent_name": name}
        async with a_session(self.server) as tool:
            who = await tool("register_agent", project_key=PROJECT, program="p", model="m", name=name)
            assert who["name"] == name
            await self.registered.wait()
            for each in range(1, MESSAGES + 1):
                self.written.append(await post(tool, name, f"Mate{(me + each) % CREW}", f"{name} {each}"))
            held = await tool("file_reservation_paths", paths=[f"src/{me}.py"], ttl_seconds=600, **mine)
            assert (len(held["granted"]), held["conflicts"]) == (1, [])
            await self.posted.wait()
            inbox = await tool("fetch_inbox", limit=50, include_bodies=False, **mine)
            assert [message["seq"] for message in inbox] == list(range(MESSAGES, 0, -1))
            for message in inbox:
                acked = await tool("acknowledge_message", message_id=message["id"], **mine)
                assert (acked["acknowledged"], acked["read"]) == (True, True)
        return int(who["id"])


async def post(tool: Tool, sender: str, reader: str, subject: str, **more: Any) -> int:
    """Send a message and return its id."""
    message = {"subject": subject, "body_md": f"From {sender}", "ack_required": True, **more}
    sent = await tool("send_message", project_key=PROJECT, sender_name=sender, to=[reader], **message)
    assert sent["count"] == 1
    return int(sent["deliveries"][0]["payload"]["id"])


async def test_a_hundred_agents_in_a_hundred_sessions_all_succeed() -> None:
    await ensure_schema()
    crew = Crew(build_mcp_server())
    async with a_session(crew.server) as tool:
        await tool("ensure_project", human_key=PROJECT)
    ids = await at_once(crew.workday(me) for me in range(CREW))
    messages = CREW * MESSAGES
    assert len(set(ids)) == CREW
    assert len(set(crew.written)) == messages
    assert await number("SELECT count(*) FROM agents") == CREW
    assert await number("SELECT count(*) FROM messages") == messages
    assert await number("SELECT count(DISTINCT subject) FROM messages") == messages
    assert await number("SELECT count(*) FROM recipients") == messages
    assert await number("SELECT count(*) FROM recipients WHERE acked_at IS NULL OR read_at IS NULL") == 0
    assert await number("SELECT count(*) FROM file_reservations WHERE released_at IS NULL") == CREW
    await assert_inboxes_have_no_gap()
    await assert_nothing_is_double()


async def test_ten_sessions_that_ensure_one_project_get_one_id() -> None:
    await ensure_schema()
    servers = [build_mcp_server() for _ in range(10)]

    async def ensure(server: Any) -> int:
        async with a_session(server) as tool:
            return int((await tool("ensure_project", human_key=PROJECT))["id"])

    assert len(set(await at_once(ensure(server) for server in servers))) == 1
    assert await number("SELECT count(*) FROM projects") == 1


async def test_ten_sessions_that_register_one_name_get_one_id() -> None:
    await ensure_schema()
    server = build_mcp_server()

    async def register(each: int) -> tuple[int, str]:
        async with a_session(server) as tool:
            task = {"program": f"p{each}", "model": "m", "task_description": f"Task {each}"}
            found = await tool("register_agent", project_key=PROJECT, name="OldOak", **task)
            return found["id"], found["name"]

    async with a_session(server) as tool:
        await tool("ensure_project", human_key=PROJECT)
    assert len(set(await at_once(register(each) for each in range(10)))) == 1
    assert await number("SELECT count(*) FROM agents") == 1


async def test_a_hundred_agents_without_a_name_get_a_hundred_names() -> None:
    await ensure_schema()
    server = build_mcp_server()

    async def make(each: int) -> str:
        async with a_session(server) as tool:
            kind = "create_agent_identity" if each % 2 else "register_agent"
            return str((await tool(kind, project_key=PROJECT, program="p", model="m"))["name"])

    async with a_session(server) as tool:
        await tool("ensure_project", human_key=PROJECT)
    assert len(set(await at_once(make(each) for each in range(CREW)))) == CREW
    await assert_nothing_is_double()


async def test_of_five_who_claim_one_path_four_see_those_who_came_before() -> None:
    await ensure_schema()
    server = build_mcp_server()
    async with a_session(server) as tool:
        crew = await crew_of(tool, 5)

    async def claim(name: str) -> int:
        async with a_session(server) as tool:
            held = {"paths": ["src/main.py"], "ttl_seconds": 600, "exclusive": True}
            got = await tool("file_reservation_paths", project_key=PROJECT, agent_name=name, **held)
            assert len(got["granted"]) == 1
            return sum(len(conflict["holders"]) for conflict in got["conflicts"])

    seen = await at_once(claim(name) for name in crew)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert await number("SELECT count(*) FROM file_reservations WHERE released_at IS NULL") == 5


async def test_one_key_sent_thirty_times_at_once_is_one_message() -> None:
    await ensure_schema()
    server = build_mcp_server()
    async with a_session(server) as tool:
        await crew_of(tool, 2)

    async def send(_: int) -> int:
        async with a_session(server) as tool:
            return await post(tool, "Mate0", "Mate1", "Once", idempotency_key="only-once")

    assert len(set(await at_once(send(each) for each in range(30)))) == 1
    assert await number("SELECT count(*) FROM messages") == 1
    await assert_inboxes_have_no_gap()


async def test_ten_who_acknowledge_one_message_at_once_see_one_moment() -> None:
    await ensure_schema()
    server = build_mcp_server()
    async with a_session(server) as tool:
        await crew_of(tool, 2)
        message = await post(tool, "Mate0", "Mate1", "Read me")

    async def acknowledge(each: int) -> str:
        async with a_session(server) as tool:
            kind = "acknowledge_message" if each % 2 else "mark_message_read"
            marked = await tool(kind, project_key=PROJECT, agent_name="Mate1", message_id=message)
            return str(marked["read_at"])

    assert len(set(await at_once(acknowledge(each) for each in range(10)))) == 1


async def test_mixed_work_in_twenty_sessions_leaves_exact_counts() -> None:
    await ensure_schema()
    server = build_mcp_server()
    async with a_session(server) as tool:
        crew = await crew_of(tool, 20)
        first = await post(tool, crew[0], crew[1], "Where is the harbor?", thread_id="harbor")

    async def work(me: int, rounds: int) -> None:
        name, other = crew[me], crew[(me + 7) % len(crew)]
        mine = {"project_key": PROJECT, "agent_name": name}
        async with a_session(server) as tool:
            for each in range(rounds):
                message = await post(tool, name, other, f"harbor {me} {each}", thread_id="harbor")
                answer = {"sender_name": name, "message_id": first, "body_md": "Here."}
                await tool("reply_message", project_key=PROJECT, **answer)
                await tool("file_reservation_paths", paths=[f"src/{each % 3}/*.py"], **mine)
                assert len(await tool("fetch_inbox", limit=5, **mine)) <= 5
                found = await tool("search_messages", project_key=PROJECT, query=f'"harbor {me} {each}"')
                assert [hit["id"] for hit in found["hits"]] == [message]
                status = await tool("delivery_status", message_id=message, **mine)
                assert [one["state"] for one in status["recipients"]] == ["stored"]
                await tool("release_file_reservations", **mine)
                summary = await tool("summarize_thread", project_key=PROJECT, thread_id="harbor")
                assert summary["messages"] > each

    await at_once(work(me, 5) for me in range(len(crew)))
    sent = 1 + 2 * 5 * len(crew)
    assert await number("SELECT count(*) FROM messages") == sent
    assert await number("SELECT count(*) FROM recipients") == sent
    assert await number("SELECT messages FROM threads WHERE thread_id = 'harbor'") == sent
    assert await number("SELECT count(*) FROM file_reservations WHERE released_at IS NULL") == 0
    await assert_inboxes_have_no_gap()
    await assert_nothing_is_double()


async def test_a_message_in_the_midst_of_a_hundred_readers_comes_to_each_once() -> None:
    await ensure_schema()
    server = build_mcp_server()
    async with a_session(server) as tool:
        crew = await crew_of(tool, CREW)

    async def follow(name: str) -> list[int]:
        cursor: int = 0
        seen: list[int] = []
        async with a_session(server) as tool:
            while len(seen) < MESSAGES:
                page = await tool("fetch_inbox_events", project_key=PROJECT, agent_name=name, after=cursor)
                seen += [event["seq"] for event in page["events"]]
                cursor = page["next"]
        return seen

    async def announce() -> list[int]:
        async with a_session(server) as tool:
            for each in range(MESSAGES):
                message = {"subject": f"To all {each}", "body_md": "All.", "broadcast": True}
                sent = await tool("send_message", project_key=PROJECT, sender_name=crew[0], **message)
                assert sent["count"] == CREW - 1
        return []

    seen = await at_once([announce(), *(follow(name) for name in crew[1:])])
    assert seen[1:] == [list(range(1, MESSAGES + 1))] * (CREW - 1)
    await assert_inboxes_have_no_gap()
