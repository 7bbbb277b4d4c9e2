"""Each tool is called by the clients of the protocol that programs are built on; each answer fits its schema."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastmcp
import httpx2
import jsonschema
import mcp
import pytest
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.streamable_http import streamable_http_client

from e2e.running import RunningServer
from mail_room import HARBOR
from postroom.mail.operations import MAIL_OPERATIONS
from real_clients.home import PROGRAMS, are_installed, beside_packages
from rest_room import arguments_of

pytestmark = pytest.mark.long

needs_npm = pytest.mark.skipif(
    not are_installed(("@modelcontextprotocol/inspector", "@modelcontextprotocol/sdk", "node")),
    reason="the clients are not installed in their pinned versions: `make clients`",
)
NODE = PROGRAMS.parent / "node" / "bin" / "node"
PATIENCE = 600
LAST = ("release_file_reservations", "retire_agent", "unretire_agent", "rotate_agent_token", "ensure_project")
"""Changes after which others would be refused."""
NEEDS_A_RUN = {"ask_person"}
Calls = list[tuple[str, dict[str, Any]]]
Answers = dict[str, dict[str, Any]]


def calls() -> Calls:
    """Return each tool with arguments for the project that `server` has, in an order in which none is refused."""
    names = [one.name for one in sorted(MAIL_OPERATIONS, key=lambda one: one.changes)]
    return [(name, arguments_of(name)) for name in (*(one for one in names if one not in LAST), *LAST)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with a project that has something to do for each tool."""
    with RunningServer(tmp_path / "data") as running:
        with running.line() as line:
            line.tool("ensure_project", human_key=HARBOR)
            place = {"project_key": HARBOR}
            for name in ("Ada", "Ben", "Cyd", "Ret"):
                line.tool("register_agent", **place, program="p", model="m", name=name)
            line.tool("retire_agent", **place, agent_name="Ret")
            message = {"sender_name": "Ada", "subject": "A subject", "body_md": "A body"}
            plan = {"name": "plan.txt", "content_base64": "dGhlIHBsYW4="}
            line.tool("send_message", **place, **message, to=["Ben"], attachments=[plan])
            line.tool("send_message", **place, **message, to=["Ben", "Cyd"])
            line.tool("file_reservation_paths", **place, agent_name="Ben", paths=["p", "q"])
            for title in ("Place the lamp", "Switch it on"):
                line.tool("add_task", **place, agent_name="Ada", title=title)
            line.tool("claim_task", **place, agent_name="Ben", task_id=2)
            line.tool("subscribe", **place, agent_name="Ben", kind="task_ready")
        yield running


def by_the_python_sdk(server: RunningServer) -> Answers:
    async def ask() -> Answers:
        headers = {"Authorization": f"Bearer {server.token}"}
        async with httpx2.AsyncClient(headers=headers) as http:
            transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
            async with mcp.Client(transport) as client:
                await client.list_tools()
                return {
                    name: (await client.call_tool(name, given)).model_dump(by_alias=True)
                    for name, given in calls()
                }

    return asyncio.run(ask())


def by_fastmcp(server: RunningServer) -> Answers:
    async def ask() -> Answers:
        transport = StreamableHttpTransport(f"{server.url}/mcp", auth=server.token)
        async with fastmcp.Client(transport) as client:
            return {
                name: (await client.call_tool_mcp(name, given)).model_dump(by_alias=True)
                for name, given in calls()
            }

    return asyncio.run(ask())


def by_the_typescript_sdk(server: RunningServer) -> Answers:
    with beside_packages("sdk_client.mjs") as program:
        done = subprocess.run(
            [NODE, program, f"{server.url}/mcp", server.token],
            input=json.dumps(calls()),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["listed"] == [one.name for one in MAIL_OPERATIONS]
    answers: Answers = found["answers"]
    return answers


def by_the_inspector(server: RunningServer) -> Answers:
    answers: Answers = {}
    environment = {
        **os.environ,
        "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(server.data_dir.parent),
    }
    for name, given in calls():
        words = [
            f"{key}={json.dumps(value) if not isinstance(value, str) else value}"
            for key, value in given.items()
        ]
        done = subprocess.run(
            [
                *(PROGRAMS / "mcp-inspector", "--cli", f"{server.url}/mcp", "--transport", "http"),
                *("--header", f"Authorization: Bearer {server.token}", "--method", "tools/call"),
                *("--tool-name", name, *(("--tool-arg", *words) if words else ())),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        try:
            answers[name] = json.loads(done.stdout)
        except ValueError:
            answers[name] = {"failed": f"{done.stdout}\n{done.stderr}"}
    return answers


@pytest.mark.parametrize(
    "ask",
    [
        by_the_python_sdk,
        by_fastmcp,
        pytest.param(by_the_typescript_sdk, marks=needs_npm),
        pytest.param(by_the_inspector, marks=[needs_npm, pytest.mark.timeout(PATIENCE)]),
    ],
)
def test_each_tool_is_called_and_its_answer_fits_the_schema(
    server: RunningServer, ask: Callable[[RunningServer], Answers]
) -> None:
    with server.line() as line:
        document = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        schemas = {
            tool["name"]: tool["outputSchema"] for tool in line.rpc(document).json()["result"]["tools"]
        }
    answers = ask(server)
    assert sorted(answers) == sorted(schemas)
    assert {name: one["failed"] for name, one in answers.items() if "failed" in one} == {}
    for name, answer in answers.items():
        jsonschema.validate(answer["structuredContent"], schemas[name])
        assert json.loads(answer["content"][0]["text"]) if not answer.get("isError") else True, name
    refused = {name: one["content"][0]["text"] for name, one in answers.items() if one.get("isError")}
    assert refused.keys() == NEEDS_A_RUN, refused
