"""An application to measure: a fresh database in a temporary folder, filled straight through the store."""

import gc
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from mcp.types import CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent

from postroom.app.config import load_settings
from postroom.app.interpreter import set_for_a_server
from postroom.app.wiring import Application
from postroom.mail.context import Caller
from postroom.mail.outgoing import to_archive
from postroom.mail.service import Mail
from postroom.mcp_server.server import PostroomMcpServer

PROJECT = "/bench/project"
BODY = "The build of module seven failed in the linker; see the log below and tell me what you think. " * 4


class WithEmptyTool(PostroomMcpServer):
    """The server with one tool more, which does nothing: what any call costs."""

    async def _list_tools(self, context: Any, asked: PaginatedRequestParams) -> ListToolsResult:
        """Return the tools, and the empty one: a client asks anew at each call of one that is not listed."""
        tools = (await super()._list_tools(context, asked)).tools
        answer = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        empty = tools[0].model_copy(update={"name": "empty", "output_schema": answer})
        return ListToolsResult(tools=[*tools, empty])

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        """Answer the empty tool at once."""
        if name == "empty":
            return CallToolResult(
                content=[TextContent(type="text", text='{"ok":true}')], structured_content={"ok": True}
            )
        return await super().call_tool(name, arguments, context)


@contextmanager
def as_served() -> Iterator[None]:
    """Have Python set as a server sets it."""
    before, switch = gc.get_threshold(), sys.getswitchinterval()
    set_for_a_server()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        sys.setswitchinterval(switch)


@asynccontextmanager
async def fresh_application(*, archive: bool = False) -> AsyncIterator[Application]:
    """Open an application in a temporary folder; closed and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        application = Application.open(
            load_settings(environment={}, overrides={"data_dir": folder, "archive_enabled": archive})
        )
        try:
            yield application
        finally:
            application.close()


def folder_of(application: Application) -> Path:
    """Return the folder in which an application keeps its data."""
    return application.settings.data_dir


async def two_agents(application: Application) -> tuple[str, str]:
    """Make the project and two agents in it."""
    await application.mail.call("ensure_project", {"human_key": PROJECT})
    names = []
    for name in ("Sender", "Reader"):
        made = await application.mail.call(
            "register_agent", {"project_key": PROJECT, "program": "bench", "model": "none", "name": name}
        )
        names.append(made["name"])
    return names[0], names[1]


def message_arguments(sender: str, reader: str) -> dict[str, Any]:
    """Return the arguments of one message of usual size."""
    return {
        "project_key": PROJECT,
        "sender_name": sender,
        "to": [reader],
        "subject": "The build of module seven",
        "body_md": BODY,
    }


async def bare_message(mail: Mail, home: str, sender: str, reader: str) -> Callable[[], Awaitable[object]]:
    """Return what writes a message, its recipient and the row for the archive, and does nothing else."""
    project, writer, receiver = await mail.store.read(
        lambda tx: ((found := tx.project(home)), tx.agent(found.id, sender), tx.agent(found.id, reader))
    )

    def rows(tx: Any) -> None:
        message = tx.insert_message(
            project_id=project.id,
            sender=writer,
            thread_id=None,
            subject="The build of module seven",
            body_md=BODY,
            importance="normal",
            ack_required=False,
            topic="",
            broadcast=False,
            reply_to=None,
            now=1,
        )
        tx.insert_recipient(message.id, receiver, "to")
        to_archive(mail.context(tx, Caller()), "message", message.id, project.id)

    return lambda: mail.store.write(rows)


def with_empty_tool(application: Application) -> PostroomMcpServer:
    """Make an MCP server over an application, with the empty tool."""
    server = application.mcp_server()
    server.__class__ = WithEmptyTool
    server._lowlevel_server.add_request_handler(  # noqa: SLF001 - it took the method that is replaced
        "tools/list",
        PaginatedRequestParams,
        server._list_tools,  # noqa: SLF001 - as above
    )
    return server


async def fill(application: Application, messages: int, *, readers: int = 20, page: int = 2_000) -> None:
    """Store many messages to many readers, straight through the store; words differ, so that searches do."""
    sender, _ = await two_agents(application)
    for number in range(readers):
        await application.mail.call(
            "register_agent",
            {"project_key": PROJECT, "program": "bench", "model": "none", "name": f"Reader{number}"},
        )

    def some(tx: Any, first: int) -> None:
        project = tx.project(PROJECT)
        writer = tx.agent(project.id, sender)
        others = tx.agents_named(project.id, [f"Reader{number}" for number in range(readers)])
        for number in range(first, min(first + page, messages)):
            message = tx.insert_message(
                project_id=project.id,
                sender=writer,
                thread_id=f"t{number % 5_000}",
                subject=f"Report {number} on module{number % 97}",
                body_md=f"common words here and word{number % 9_973} beside rare{number} {BODY[:200]}",
                importance="normal",
                ack_required=False,
                topic="",
                broadcast=False,
                reply_to=None,
                now=1_700_000_000_000 + number,
            )
            tx.insert_recipient(message.id, others[number % readers], "to")

    for first in range(0, messages, page):
        await application.store.write(lambda tx, first=first: some(tx, first))
    await application.store.settle()
