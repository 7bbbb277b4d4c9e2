"""A client that setup connected reaches a real server: by what stands in its file, over HTTP and over stdio."""

import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from e2e.running import RunningServer, plain_environment
from machine import PATIENCE

pytestmark = pytest.mark.long

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


class Shell:
    """A project folder in a separate home, and the installed command."""

    def __init__(self, home: Path, server: RunningServer) -> None:
        self.project = home / "harbour"
        self.project.mkdir(parents=True)
        self.environment = {
            **plain_environment(home),
            "PATH": PATH,
            "POSTROOM_DATA_DIR": str(server.data_dir),
            "POSTROOM_TOKEN": server.token,
        }

    def setup(self, *words: str, code: int = 0, without: str = "") -> Any:
        """Run the command and return its document."""
        done = subprocess.run(
            ["postroom", "setup", *words, "--json"],
            cwd=self.project,
            env={name: value for name, value in self.environment.items() if name != without},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def entry(self) -> dict[str, Any]:
        """Return our entry as Claude Code reads it: with variables filled in."""
        text = (self.project / ".mcp.json").read_text()
        text = text.replace("${POSTROOM_TOKEN}", self.environment["POSTROOM_TOKEN"])
        return json.loads(text)["mcpServers"]["postroom"]  # type: ignore[no-any-return]  # JSON


@pytest.fixture
def shell(tmp_path: Path, server: RunningServer) -> Shell:
    return Shell(tmp_path / "home", server)


async def messages_of(client: Client) -> str:
    """Play an agent: begin a session, write a message to oneself, and return the subject found in the inbox."""
    project = {"project_key": "/home/me/harbour"}
    await client.call_tool("start_session", {**project, "program": "test", "model": "none", "name": "Ada"})
    message = {**project, "sender_name": "Ada", "to": ["Ada"], "subject": "Lights", "body_md": "on"}
    sent = await client.call_tool("send_message", message)
    assert not sent.is_error, sent.content
    inbox = await client.call_tool("fetch_inbox", {**project, "agent_name": "Ada"})
    return json.dumps(inbox.structured_content)


async def test_a_client_reads_mail_over_stdio_by_the_file_that_was_written(shell: Shell) -> None:
    [told] = shell.setup("claude", "--scope", "project")["clients"]
    assert told["trial"]["state"] == "answered"
    assert told["trial"]["detail"] == "19 tools"
    entry = shell.entry()
    command = {"type": "stdio", "command": "postroom", "args": ["mcp", "--tools", "core"]}
    assert entry == {**command, "alwaysLoad": True}
    program = StdioServerParameters(
        command=entry["command"], args=entry["args"], env=shell.environment, cwd=shell.project
    )
    async with Client(stdio_client(program)) as client:
        assert "Lights" in await messages_of(client)


async def test_a_client_reads_mail_over_http_by_the_file_that_was_written(
    shell: Shell, server: RunningServer
) -> None:
    [told] = shell.setup("claude", "--scope", "project", "--http", "--tools", "full")["clients"]
    assert told["trial"]["state"] == "answered"
    assert told["trial"]["detail"].endswith("tools, health ok")
    assert server.token not in (shell.project / ".mcp.json").read_text()
    entry = shell.entry()
    assert entry["url"] == f"{server.url}/mcp/full"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=entry["headers"]))
        transport = streamable_http_client(entry["url"], http_client=http)
        assert "Lights" in await messages_of(await stack.enter_async_context(Client(transport)))


def test_a_token_that_is_not_set_is_told_and_a_wrong_one_fails(shell: Shell) -> None:
    words = ("claude", "--scope", "project", "--http")
    [told] = shell.setup(*words, without="POSTROOM_TOKEN")["clients"]
    assert told["trial"]["state"] == "not tried"
    assert "POSTROOM_TOKEN" in told["trial"]["detail"]
    shell.environment["POSTROOM_TOKEN"] = f"prm_{'x' * 43}"
    [told] = shell.setup(*words, code=1)["clients"]
    assert told["trial"]["state"] == "failed"
    assert "prm_x" not in json.dumps(told)
