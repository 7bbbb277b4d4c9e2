"""Claude Code, started as `claude -p` or `claude-agent-acp`."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from postroom.contracts import client_programs
from postroom.contracts.client_programs import NAME
from postroom.contracts.executor import RunAccess
from postroom.contracts.runners import Recipe
from postroom.contracts.runs import Usage
from postroom.executors.clients.client import (
    SESSION,
    CodingClient,
    Connection,
    OverAcp,
    Said,
    Shape,
    Steering,
    micros_in,
    number_in,
    servers_argument,
    table_in,
    text_in,
    tokens_in,
)

_ALLOWED: Final = f"mcp__{NAME}"
_TWICE: Final = f"mcp__plugin_{NAME}_{NAME}"
"""The prefix of the names of postroom's tools in the plugin that setup installs.

With the plugin, Claude Code sees postroom's tools twice, and the plugin's tools do not know the run.
"""


def _read(said: Said, line: Mapping[str, Any]) -> str:
    kind = line.get("type")
    if kind == "user" and line.get("isReplay") is True and said.is_ended:
        said.keep_answer()  # a new turn starts, with messages that were too late for this one
        said.is_ended = False
    if kind == "system":
        said.session = text_in(line, "session_id") or said.session
    if kind == "assistant":
        said.is_begun = True
        content = table_in(line, "message").get("content")
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        return "".join(text_in(block, "text") or "" for block in blocks if block.get("type") == "text")
    if kind == "result":
        said.is_ended = True
        result, errors = text_in(line, "result"), line.get("errors")
        listed = "; ".join(map(str, errors)) if isinstance(errors, list) else ""
        failed = line.get("is_error") is True or str(line.get("subtype", "")).startswith("error")
        said.error = (result or listed or str(line.get("subtype"))) if failed else None
        said.answer = None if failed else f"{said.earlier}{result or ''}"
        said.session = text_in(line, "session_id") or said.session
        used = table_in(line, "usage")
        cached = number_in(used, "cache_creation_input_tokens") + number_in(used, "cache_read_input_tokens")
        rest = Usage(input_tokens=int(cached), cost_micros=micros_in(line, "total_cost_usd"))
        said.usage = tokens_in(used, "input_tokens", "output_tokens") + rest
    return ""


def _connect(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    return Connection(
        words=(
            f"--mcp-config={servers_argument(access, Recipe.CLAUDE, **client_programs.CLAUDE_LOADED)}",
            f"--allowedTools={_ALLOWED}",
            f"--disallowedTools={_TWICE}",
        ),
        # Otherwise, Claude Code starts without postroom's tools if the server is slow.
        variables={"MCP_CONNECTION_NONBLOCKING": "0"},
    )


class _Steering(Steering):
    more_words = ("--input-format", "stream-json", "--replay-user-messages")

    def begin(self) -> None:
        self.tell(self._prompt)

    def tell(self, text: str) -> str | None:
        if self.is_over:
            return None
        name = str(uuid.uuid4())  # Claude Code ignores a message whose name it knows
        content = {"role": "user", "content": text}
        self._say({"type": "user", "uuid": name, "message": content})
        return name

    def process_line(self, line: Mapping[str, Any]) -> str | None:
        if line.get("type") == "result":
            self.is_over = True
        is_replay = line.get("type") == "user" and line.get("isReplay") is True
        return str(line.get("uuid")) if is_replay else None


CLAUDE: Final = CodingClient(
    recipe=Recipe.CLAUDE,
    program=client_programs.CLAUDE,
    command=(
        *("claude", "-p", "--output-format", "stream-json", "--verbose"),
        *("--permission-mode", "acceptEdits"),
    ),
    resume=("--resume", SESSION),
    shape=Shape.LINES,
    reader=_read,
    expects="a line of type `result`",
    refusals=("no conversation found", "session not found", "invalid session"),
    connect=_connect,
    steering=_Steering,
    expects_steered="a line of type `result`",
    acp=OverAcp(
        command=("claude-agent-acp",),
        program=client_programs.CLAUDE_ACP,
        in_session={
            "_meta": {
                "claudeCode": {"options": {"allowedTools": [_ALLOWED], "disallowedTools": [_TWICE]}},
            }
        },
    ),
)
