"""What sending costs: one after another, a hundred agents at once, and below MCP."""

import asyncio
import sqlite3
import time
from typing import Any

from fastmcp import Client

from benchmarks.application import (
    PROJECT,
    bare_message,
    folder_of,
    fresh_application,
    message_arguments,
    two_agents,
    with_empty_tool,
)
from benchmarks.figures import Table, median, ms, size, timed
from postroom.app.wiring import Application
from postroom.stores.sqlite.connection import connect

ROUNDS = size(1_000, 20)
TURN = 20
AGENTS = size(100, 5)
MESSAGES = size(20, 2)


def _bare(application: Application) -> sqlite3.Connection:
    connection = connect(folder_of(application) / "bare.db")
    connection.execute("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, text TEXT)")
    return connection


def _commit(connection: sqlite3.Connection) -> float:
    began = time.perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO bare (text) VALUES ('one small row, as durable as ours')")
    connection.execute("COMMIT")
    return time.perf_counter() - began


async def one_after_another(table: Table) -> None:
    """Take turns, a few calls each: the empty tool, bare commits, messages; all meet the same machine."""
    async with fresh_application() as application:
        sender, reader = await two_agents(application)
        bare = _bare(application)
        async with Client(with_empty_tool(application)) as client:
            arguments = message_arguments(sender, reader)
            await timed(50, lambda: client.call_tool("send_message", arguments))
            empty, commits, sent = [], [], []
            for _ in range(ROUNDS // TURN):
                empty += await timed(TURN, lambda: client.call_tool("empty", arguments))
                commits += [_commit(bare) for _ in range(2 * TURN)]
                sent += await timed(TURN, lambda: client.call_tool("send_message", arguments))
        bare.close()
    limit = median(empty) + 2 * median(commits)
    parts = f"empty tool {ms(median(empty))} + 2 commits of {ms(median(commits))}"
    table.add("one send_message, in memory", ms(median(sent)), parts, median(sent) / limit, "at most 1")


async def hundred_at_once(table: Table) -> None:
    """A hundred agents in a hundred sessions send at once; nobody fails."""
    async with fresh_application() as application:
        await two_agents(application)
        names = [f"Agent{number}" for number in range(AGENTS)]
        for name in names:
            await application.mail.call(
                "register_agent",
                {"project_key": "/bench/project", "program": "b", "model": "n", "name": name},
            )
        server = with_empty_tool(application)
        sending = await _rate(server, names, "send_message")
        empty = await _rate(server, names, "empty")
    table.add(
        f"{AGENTS} agents at once, in memory",
        f"{sending:,.0f} sends/s",
        f"{empty:,.0f} empty calls/s",
        sending / empty,
        "at least 0.5",
    )


async def _rate(server: Any, names: list[str], tool: str) -> float:
    ready = asyncio.Barrier(AGENTS + 1)

    async def agent(number: int) -> None:
        arguments = message_arguments(names[number], names[(number + 1) % AGENTS])
        async with Client(server) as client:
            await client.call_tool("empty", arguments)
            await ready.wait()
            for _ in range(MESSAGES):
                await client.call_tool(tool, arguments)

    async with asyncio.TaskGroup() as group:
        for number in range(AGENTS):
            group.create_task(agent(number))
        await ready.wait()
        began = time.perf_counter()
    return AGENTS * MESSAGES / (time.perf_counter() - began)


async def below_mcp(table: Table) -> None:
    """The mail service against the bare writer thread that commits the same rows."""
    async with fresh_application() as application:
        sender, reader = await two_agents(application)
        arguments = message_arguments(sender, reader)
        rows = await bare_message(application.mail, PROJECT, sender, reader)
        for tasks in (1, 8, 64):
            bare = await _many(tasks, rows)
            mail = await _many(tasks, lambda: application.mail.call("send_message", dict(arguments)))
            table.add(
                f"mail service, {tasks} at once",
                f"{mail:,.0f} messages/s",
                f"{bare:,.0f} messages/s of the same rows by the bare writer",
                mail / bare,
                "at least 0.40",
            )


async def _many(tasks: int, call: Any, *, seconds: float = 1.5) -> float:
    done = 0
    end = time.perf_counter() + seconds

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call()
            done += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())
    return done / (time.perf_counter() - began)


async def main() -> None:
    """Print the table."""
    table = Table("Sending")
    await one_after_another(table)
    await hundred_at_once(table)
    await below_mcp(table)


if __name__ == "__main__":
    asyncio.run(main())
