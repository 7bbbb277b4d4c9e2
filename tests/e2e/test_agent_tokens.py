"""Agents' tokens over HTTP: each opens the endpoint for its agent alone, also when many are made at once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from e2e.running import Line, RunningServer

FOLDER = "/yard/tokens"
AT_ONCE = 8


@pytest.fixture(scope="module")
def crew(server: RunningServer) -> tuple[str, ...]:
    names = ("Ada", "Ben")
    with server.line() as line:
        line.tool("ensure_project", human_key=FOLDER)
        for name in names:
            line.tool("register_agent", project_key=FOLDER, program="p", model="m", name=name)
    return names


def rotate(server: RunningServer, name: str) -> Path:
    with server.line() as line:
        made = line.tool("rotate_agent_token", project_key=FOLDER, agent_name=name)
    return Path(made["token_file"])


def as_agent(server: RunningServer, token: str) -> Line:
    return Line(server.address, headers={"Authorization": f"Bearer {token}"})


def test_a_client_that_lists_tools_before_it_shows_an_answer_shows_where_the_new_token_is(
    server: RunningServer, crew: tuple[str, ...]
) -> None:
    """The Python SDK does so, to check the answer, when it was not told the tool's output before."""
    old = rotate(server, "Ben").read_text().strip()

    async def rotated() -> dict[str, Any]:
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {old}"})
        async with http, Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client:
            asked = {"project_key": FOLDER, "agent_name": "Ben"}
            found = await client.call_tool("rotate_agent_token", asked)
            again = await client.call_tool("fetch_inbox", asked)
            assert again.is_error, "the old token does nothing else"
        return dict(found.structured_content or {})

    new = Path(asyncio.run(rotated())["token_file"]).read_text().strip()
    assert new != old
    with as_agent(server, new) as line:
        assert isinstance(line.tool("fetch_inbox", project_key=FOLDER, agent_name="Ben"), list)


def test_of_many_tokens_made_at_once_the_one_that_is_kept_counts(
    server: RunningServer, crew: tuple[str, ...]
) -> None:
    for _ in range(5):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            (file,) = set(pool.map(lambda _: rotate(server, "Ada"), range(AT_ONCE)))
        with as_agent(server, file.read_text().strip()) as line:
            assert isinstance(line.tool("fetch_inbox", project_key=FOLDER, agent_name="Ada"), list)
    assert [one.name for one in file.parent.iterdir() if one.name.startswith(".")] == []
