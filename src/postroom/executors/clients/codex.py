"""Codex, started as `codex exec`, `codex app-server` (for messages during a run) or `codex-acp`."""

import json
import sys
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from postroom.contracts import client_programs
from postroom.contracts.client_programs import NAME
from postroom.contracts.clients import CLIENT_HEADER
from postroom.contracts.executor import (
    FOLDER_VARIABLE,
    PATH_VARIABLE,
    STDIO,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    RunAccess,
)
from postroom.contracts.runners import Recipe
from postroom.executors.clients.client import (
    SESSION,
    CodingClient,
    Connection,
    OverAcp,
    Said,
    Say,
    Shape,
    Steering,
    table_in,
    text_in,
    tokens_in,
)
from postroom.executors.jsonrpc import METHOD_NOT_FOUND, Answer, Asked, Peer, ProtocolFault
from postroom.log import get_logger
from postroom.version import __version__

_LOG = get_logger(__name__)


def _read(said: Said, line: Mapping[str, Any]) -> str:
    if "method" in line:
        return _read_server(said, line)
    kind = line.get("type")
    if kind == "thread.started":
        said.session = text_in(line, "thread_id") or said.session
    if kind in ("turn.failed", "error"):
        said.error = text_in(table_in(line, "error"), "message") or text_in(line, "message") or kind
    if kind == "turn.completed":
        said.is_ended = True
        said.usage += tokens_in(table_in(line, "usage"), "input_tokens", "output_tokens")
        said.error = None  # the client recovered from earlier errors in the turn
    if kind == "item.completed":
        said.is_begun = True
        item = table_in(line, "item")
        if (item.get("type") or item.get("item_type")) in ("agent_message", "assistant_message"):
            said.answer = text_in(item, "text") or said.answer
            return text_in(item, "text") or ""
    return ""


def _read_server(said: Said, line: Mapping[str, Any]) -> str:
    params = table_in(line, "params")
    if line["method"] == "turn/completed":
        turn = table_in(params, "turn")
        said.is_ended, said.error = True, None
        if turn.get("status") != "completed":
            status = turn.get("status")
            said.error = text_in(table_in(turn, "error"), "message") or f"the turn ended: {status}"
    if line["method"] == "thread/tokenUsage/updated":
        last = table_in(table_in(params, "tokenUsage"), "last")
        said.usage += tokens_in(last, "inputTokens", "outputTokens")
    if line["method"] != "item/completed":
        return ""
    item, former = table_in(params, "item"), said.last
    said.last = text_in(item, "type") or ""
    if said.last == "userMessage" and former == "agentMessage":
        said.keep_answer()
    if said.last != "userMessage":
        said.is_begun = True
    if said.last != "agentMessage":
        return ""
    text = text_in(item, "text") or ""
    said.answer = f"{said.earlier}{text}"
    return text


def _connect(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    path = Path(environment.get("CODEX_HOME") or Path(environment.get("HOME", "~"), ".codex"), "config.toml")
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))["mcp_servers"][NAME]
    except (OSError, ValueError, KeyError, TypeError):
        own = None
    if isinstance(own, dict) and "command" in own:
        fields: dict[str, object] = {
            "command": sys.executable,
            "args": list(STDIO),
            "env_vars": [URL_VARIABLE, PATH_VARIABLE, FOLDER_VARIABLE, TOKEN_VARIABLE],
        }
    else:
        fields = {"url": access.mcp_url, "bearer_token_env_var": TOKEN_VARIABLE}
        fields[f"http_headers.{CLIENT_HEADER}"] = Recipe.CODEX.value
    fields |= {**client_programs.CODEX_GRANTED, **client_programs.CODEX_DIRECT}
    fields["required"] = True  # otherwise, Codex starts without postroom's tools if the server is slow
    words = (  # strings, lists of strings and booleans are the same in JSON and TOML
        word
        for name, value in fields.items()
        for word in ("-c", f"mcp_servers.{NAME}.{name}={json.dumps(value)}")
    )
    return Connection(words=tuple(words))


class _Steering(Steering):
    command = ("codex", "app-server")

    def __init__(self, say: Say, said: Said, *, prompt: str, cwd: str, session: str | None) -> None:
        super().__init__(say, said, prompt=prompt, cwd=cwd, session=session)
        self._peer = Peer(say)
        self._turn: str | None = None

    def begin(self) -> None:
        self._said.must_end = True
        us = {"name": "postroom", "title": "postroom", "version": __version__}
        self._peer.ask("initialize", {"clientInfo": us})

    def tell(self, text: str) -> str | None:
        if self.is_over or self._turn is None:
            return None
        return self._tell("turn/steer", text, expectedTurnId=self._turn)

    def process_line(self, line: Mapping[str, Any]) -> str | None:
        try:
            message = self._peer.read(line)
        except (
            ProtocolFault
        ) as error:  # if nothing else ends the turn, the run fails and reports the unknown lines
            _LOG.debug("codex.line_ignored", reason=str(error))
            return None
        match message:
            case Answer():
                self._handle_answer(message)
                return None
            case Asked():
                self._peer.refuse(message.id, METHOD_NOT_FOUND, "no person can answer in this run")
                return None
        if message.method == "turn/started":
            self._turn = text_in(table_in(message.params, "turn"), "id")
        if message.method == "turn/completed":
            self.is_over = True
        item = table_in(message.params, "item")
        is_taken = message.method == "item/started" and item.get("type") == "userMessage"
        return text_in(item, "clientId") if is_taken else None

    def _handle_answer(self, answer: Answer) -> None:
        if answer.refusal is not None:
            if (
                answer.method != "turn/steer"
            ):  # a message that is too late for the turn waits for the next run
                self._said.error = f"{answer.method}: {answer.refusal.text}"
                self.is_over = True
        elif answer.method == "initialize":
            self._peer.tell("initialized", {})
            place = {"cwd": self._cwd, "approvalPolicy": "never", "sandbox": "workspace-write"}
            if self._session is None:
                self._peer.ask("thread/start", place)
            else:
                self._peer.ask("thread/resume", {**place, "threadId": self._session})
        elif answer.method in ("thread/start", "thread/resume"):
            self._session = self._said.session = text_in(table_in(answer.result, "thread"), "id")
            self._tell("turn/start", self._prompt)

    def _tell(self, method: str, text: str, **more: str) -> str:
        name = str(uuid.uuid4())
        fields = {"threadId": self._session, "input": [{"type": "text", "text": text}]}
        self._peer.ask(method, {**fields, "clientUserMessageId": name, **more})
        return name


CODEX: Final = CodingClient(
    recipe=Recipe.CODEX,
    program=client_programs.CODEX,
    command=("codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", "workspace-write"),
    resume=("resume", SESSION),
    with_stdin=("-",),
    shape=Shape.LINES,
    reader=_read,
    expects="an `item.completed` with an `agent_message`",
    refusals=("no rollout found", "rollout not found", "missing rollout", "session not found"),
    connect=_connect,
    steering=_Steering,
    expects_steered="a `turn/completed` of its app-server",
    acp=OverAcp(
        command=("codex-acp",),
        program=client_programs.CODEX_ACP,
    ),
)
