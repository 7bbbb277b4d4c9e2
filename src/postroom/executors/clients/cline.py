"""Cline, started as `cline --json`; it cannot resume a session."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from postroom.contracts import client_programs
from postroom.contracts.executor import STDIO, RunAccess
from postroom.contracts.runners import PROMPT, Recipe
from postroom.contracts.runs import Usage
from postroom.executors.clients.client import (
    NO_CONNECTION,
    CodingClient,
    Connection,
    Said,
    Shape,
    micros_in,
    settings_with_server,
    table_in,
    text_in,
    tokens_in,
)

_SETTINGS: Final = "CLINE_MCP_SETTINGS_PATH"


def _read(said: Said, line: Mapping[str, Any]) -> str:
    kind, event = line.get("type"), table_in(line, "event")
    if kind == "agent_event" and event.get("type") == "content_end":
        said.is_begun = True
        return (text_in(event, "text") or "") if event.get("contentType") == "text" else ""
    if kind == "error":
        said.error = text_in(line, "message") or kind
    if kind == "run_result":
        said.is_begun = said.is_ended = True
        said.answer = text_in(line, "text")
        reason = text_in(line, "finishReason") or ""
        said.error = None if reason == "completed" else said.error or f"its run ended: {reason}"
        used = table_in(line, "aggregateUsage")
        cost = Usage(cost_micros=micros_in(used, "totalCost"))
        said.usage = tokens_in(used, "inputTokens", "outputTokens") + cost
    return ""


def _connect(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    home = Path(environment.get("CLINE_DIR") or Path(environment.get("HOME", "~"), ".cline"))
    data = Path(environment.get("CLINE_DATA_DIR") or home / "data")
    path = Path(environment.get(_SETTINGS) or data / "settings" / "cline_mcp_settings.json")
    settings = settings_with_server(path, {"command": sys.executable, "args": list(STDIO)})
    if settings is None:
        return NO_CONNECTION  # the client reports the problem in its settings
    name = "cline_mcp_settings.json"
    return Connection(variables={_SETTINGS: str(folder / name)}, files={name: settings})


CLINE: Final = CodingClient(
    recipe=Recipe.CLINE,
    program=client_programs.CLINE,
    command=("cline", "--json"),
    with_stdin=(PROMPT,),  # Cline reads its input only if it has a prompt
    one_word_is_command=True,
    # Cline's hub would use the variables of the session that started the hub, and would outlive the run.
    variables={"CLINE_SESSION_BACKEND_MODE": "local"},
    shape=Shape.LINES,
    reader=_read,
    expects="a line of type `run_result`",
    connect=_connect,
)
