"""One of two agents that know of each other only through the server: run as a separate process.

    python peer.py <role> <url> <token> <client> <project>

`role` is Ada or Ben, `client` one of the keys of CLIENTS. It prints what it saw as one JSON object.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import fastmcp
import mcp
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

PATIENCE: Final = 90.0
Tool = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def by_fastmcp(url: str, token: str) -> AsyncIterator[Tool]:
    """Call tools as `fastmcp` does, which first asks for the newest revision."""
    transport = StreamableHttpTransport(url, headers={"Authorization": f"Bearer {token}"})
    async with fastmcp.Client(transport) as client:

        async def tool(name: str, /, **arguments: Any) -> Any:
            return (await client.call_tool(name, arguments)).structured_content

        yield tool


def by_sdk(mode: Any) -> Callable[[str, str], Any]:
    """Call tools as the SDK's client does: with a handshake (`legacy`), or in the newest revision."""

    @asynccontextmanager
    async def opened(url: str, token: str) -> AsyncIterator[Tool]:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            create_mcp_http_client(headers=headers) as http,
            mcp.Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):

            async def tool(name: str, /, **arguments: Any) -> Any:
                result = await client.call_tool(name, arguments)
                if result.is_error:
                    raise RuntimeError(result.content)
                return result.structured_content

            yield tool

    return opened


CLIENTS: Final = {"fastmcp": by_fastmcp, "handshake": by_sdk("legacy"), "2026": by_sdk("2026-07-28")}


async def first(look: Callable[[], Awaitable[Any]]) -> Any:
    """Poll until there is a result; the caller bounds the time."""
    while not (found := await look()):
        await asyncio.sleep(0.02)
    return found


async def the_message(tool: Tool, project: str, name: str) -> Any:
    """Return the first message that an agent has not read, once there is one."""

    async def look() -> Any:
        inbox = await tool("fetch_inbox", project_key=project, agent_name=name, unread_only=True)
        return inbox["result"]

    return (await first(look))[0]


async def ada(tool: Tool, project: str) -> dict[str, Any]:
    """Reserve, wait for Ben, ask him, read his answer and see that he acknowledged."""
    mine = {"project_key": project, "agent_name": "Ada"}
    begun = {"program": "peer", "model": "none", "name": "Ada", "reserve_paths": ["src/harbor/**"]}
    session = await tool("start_session", project_key=project, **begun)

    async def ben_is_there() -> bool:
        agents = (await tool("list_agents", project_key=project))["agents"]
        return "Ben" in [agent["name"] for agent in agents]

    await first(ben_is_there)
    question = {"subject": "The lighthouse", "body_md": "Is the *lamp* lit?", "ack_required": True}
    sent = await tool("send_message", project_key=project, sender_name="Ada", to=["Ben"], **question)
    asked = sent["deliveries"][0]["payload"]["id"]
    answer = await the_message(tool, project, "Ada")
    await tool("acknowledge_message", message_id=answer["id"], **mine)

    async def acknowledged() -> Any:
        status = await tool("delivery_status", message_id=asked, **mine)
        return status["recipients"][0]["state"] == "acknowledged" and status

    status = await first(acknowledged)
    released = await tool("release_file_reservations", **mine)
    return {
        "reserved": session["reservations"]["granted"],
        "asked": asked,
        "answer": answer,
        "status": status,
        "released": released["released"],
    }


async def ben(tool: Tool, project: str) -> dict[str, Any]:
    """Read Ada's question, see her reservation, answer, acknowledge and find the messages by a search."""
    mine = {"project_key": project, "agent_name": "Ben"}
    await tool("ensure_project", human_key=project)
    await tool("register_agent", project_key=project, program="peer", model="none", name="Ben")
    question = await the_message(tool, project, "Ben")
    claimed = await tool("file_reservation_paths", paths=["src/harbor/lamp.py"], **mine)
    answer = {"sender_name": "Ben", "message_id": question["id"], "body_md": "The lighthouse is lit."}
    replied = await tool("reply_message", project_key=project, **answer)
    marked = await tool("acknowledge_message", message_id=question["id"], **mine)
    found = await tool("search_messages", project_key=project, query='"lighthouse"')
    return {
        "question": question,
        "conflicts": claimed["conflicts"],
        "replied": replied["deliveries"][0]["payload"]["id"],
        "marked": marked,
        "found": [hit["id"] for hit in found["hits"]],
    }


async def main(role: str, url: str, token: str, client: str, project: str) -> None:
    """Play one role, within a bound of time."""
    async with asyncio.timeout(PATIENCE), CLIENTS[client](url, token) as tool:
        print(json.dumps(await {"Ada": ada, "Ben": ben}[role](tool, project)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
