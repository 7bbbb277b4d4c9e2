"""opencode, started as `opencode run`, with postroom's plugin for messages, or as `opencode acp`."""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from postroom.contracts import client_programs
from postroom.contracts.client_programs import NAME
from postroom.contracts.executor import TOKEN_VARIABLE, RunAccess
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
    run_headers,
    table_in,
    text_in,
    tokens_in,
)

_SETTINGS: Final = "OPENCODE_CONFIG_CONTENT"
_PLUGIN: Final = Path(__file__).with_name("opencode_steering.js").as_uri()


def _read(said: Said, line: Mapping[str, Any]) -> str:
    kind, part = line.get("type"), table_in(line, "part")
    said.session = text_in(line, "sessionID") or text_in(part, "sessionID") or said.session
    if kind == "error":
        error = table_in(line, "error")
        said.error = text_in(table_in(error, "data"), "message") or text_in(error, "name") or "error"
    if kind == "step_start":
        said.starts_anew = True
        if said.last == "stop":
            said.keep_answer()
    if kind in ("text", "tool_use"):
        said.is_begun = True
    if kind == "text":
        before = said.earlier if said.starts_anew else said.answer or ""
        said.starts_anew = False
        said.answer = before + (text_in(part, "text") or "")
        return text_in(part, "text") or ""
    if kind == "step_finish":
        said.is_ended = True
        said.last = text_in(part, "reason") or ""
        said.usage += tokens_in(table_in(part, "tokens"), "input", "output")
        said.usage += Usage(cost_micros=micros_in(part, "cost"))
    return ""


def _settings(environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        settings = json.loads(environment.get(_SETTINGS) or "{}")
    except ValueError:
        settings = {}
    return settings if isinstance(settings, dict) else {}


def _connect(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    settings = _settings(environment)
    headers = run_headers(f"{{env:{TOKEN_VARIABLE}}}", Recipe.OPENCODE)
    server = {"type": "remote", "url": access.mcp_url, "enabled": True, "oauth": False, "headers": headers}
    settings["mcp"] = {**table_in(settings, "mcp"), NAME: server}
    return Connection(variables={_SETTINGS: json.dumps(settings)})


def _plugin(environment: Mapping[str, str], socket: str) -> Mapping[str, str]:
    settings = _settings(environment)
    plugins = settings.get("plugin")
    others = [plugin for plugin in plugins if plugin != _PLUGIN] if isinstance(plugins, list) else []
    settings["plugin"] = [*others, _PLUGIN]
    return {_SETTINGS: json.dumps(settings), "POSTROOM_STEERING": socket}


class _Steering(Steering):
    def begin(self) -> None:
        """Do nothing, because opencode has read the prompt."""

    def tell(self, text: str) -> str | None:
        if self._said.session is None:
            return None
        name = str(uuid.uuid4())
        self._say({"session": self._said.session, "name": name, "text": text})
        return name

    def process_line(self, line: Mapping[str, Any]) -> str | None:
        return text_in(line, "name") if line.get("type") == "postroom.taken" else None


OPENCODE: Final = CodingClient(
    recipe=Recipe.OPENCODE,
    program=client_programs.OPENCODE,
    command=("opencode", "run", "--format", "json"),
    resume=("--session", SESSION),
    shape=Shape.LINES,
    reader=_read,
    expects="lines of type `text` and `step_finish`",
    refusals=("session not found", "notfounderror", "invalid session"),
    connect=_connect,
    steering=_Steering,
    steering_plugin=_plugin,
    expects_steered="lines of type `text` and `step_finish`",
    acp=OverAcp(command=("opencode", "acp")),
)
