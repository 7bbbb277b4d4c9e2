"""Copilot CLI, started as `copilot -p` or `copilot --acp`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from postroom.contracts import client_programs
from postroom.contracts.executor import RunAccess
from postroom.contracts.runners import PROMPT, Recipe
from postroom.executors.clients.client import (
    SESSION,
    CodingClient,
    Connection,
    OverAcp,
    Said,
    Shape,
    servers_argument,
    table_in,
    text_in,
)


def _read(said: Said, line: Mapping[str, Any]) -> str:
    kind, data = line.get("type"), table_in(line, "data")
    said.session = text_in(line, "sessionId") or text_in(data, "sessionId") or said.session
    if kind == "assistant.message":
        said.is_begun = True
        said.answer = text_in(data, "content") or said.answer
        return text_in(data, "content") or ""
    if kind in ("session.error", "error"):
        said.error = text_in(data, "message") or text_in(line, "message") or kind
    if kind == "result":
        said.is_ended = True
    return ""


def _connect(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    servers = servers_argument(access, Recipe.COPILOT, tools=["*"])
    return Connection(words=(f"--additional-mcp-config={servers}",))


COPILOT: Final = CodingClient(
    recipe=Recipe.COPILOT,
    program=client_programs.COPILOT,
    command=("copilot", "--output-format", "json", "--allow-all-tools", "--no-auto-update"),
    resume=("--resume", SESSION),
    with_argument=("-p", PROMPT),
    shape=Shape.LINES,
    reader=_read,
    expects="a line of type `assistant.message`",
    refusals=("session not found", "no session"),
    connect=_connect,
    acp=OverAcp(command=("copilot", "--acp")),
)
