"""Gemini CLI, started as `gemini --output-format json` or `gemini --acp`."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from postroom.contracts import client_programs
from postroom.contracts.executor import TOKEN_VARIABLE, RunAccess
from postroom.contracts.runners import PROMPT, Recipe
from postroom.executors.clients.client import (
    NO_CONNECTION,
    SESSION,
    CodingClient,
    Connection,
    OverAcp,
    Said,
    Shape,
    run_headers,
    settings_with_server,
    table_in,
    text_in,
    tokens_in,
)

_HOME: Final = "GEMINI_CLI_HOME"
_WRITES: Final = (
    "GEMINI.md",
    "gemini-credentials.json",
    "google_accounts.json",
    "installation_id",
    "mcp-oauth-tokens.json",
    "oauth_creds.json",
)
"""The names of files that Gemini CLI writes.

The files must not be links, because even a dangling link would lead to the user's folder.
"""


def _read(said: Said, line: Mapping[str, Any]) -> str:
    answer = text_in(line, "response")
    error = line.get("error")
    if answer is None and error is None:
        return ""
    said.is_begun, said.is_ended = answer is not None, True
    said.answer = answer
    said.error = text_in(error, "message") or str(error) if isinstance(error, dict) else None
    said.session = text_in(line, "session_id") or text_in(line, "sessionId") or said.session
    for model in table_in(table_in(line, "stats"), "models").values():
        tokens = table_in(model, "tokens") if isinstance(model, dict) else {}
        said.usage += tokens_in(tokens, "prompt", "candidates")
    return answer or ""


def _connect(access: RunAccess, environment: Mapping[str, str], folder: Path) -> Connection:
    home = Path(environment.get(_HOME) or environment.get("HOME") or Path.home()).absolute()
    headers = run_headers(f"${TOKEN_VARIABLE}", Recipe.GEMINI)
    server = {"httpUrl": access.mcp_url, "headers": headers, **client_programs.GEMINI_GRANTED}
    settings = settings_with_server(home / ".gemini" / "settings.json", server)
    if settings is None:
        return NO_CONNECTION  # the client reports the problem in its settings
    own = home / ".gemini"
    entries = {*_WRITES, "tmp", "history"}
    with suppress(OSError):
        for name in ("tmp", "history"):  # Gemini CLI cannot create a folder through a dangling link.
            (own / name).mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        entries |= {path.name for path in own.iterdir()}
    links = {f".gemini/{name}": own / name for name in sorted(entries - {"settings.json"})}
    links |= {name: home / name for name in (".agents", ".env") if (home / name).exists()}
    return Connection(variables={_HOME: str(folder)}, files={".gemini/settings.json": settings}, links=links)


def _session_to_load(session: str) -> str:
    """Return the session id with a leading space, so that Gemini does not overwrite the stored session."""
    return f" {session.strip()}"


GEMINI: Final = CodingClient(
    recipe=Recipe.GEMINI,
    program=client_programs.GEMINI,
    command=("gemini", "--output-format", "json", "--approval-mode", "auto_edit"),
    resume=("--resume", SESSION),
    with_argument=("--prompt", PROMPT),
    # Without this setting, Gemini CLI starts no MCP server in a folder that the user has not marked as
    # trusted.
    variables={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
    shape=Shape.WHOLE,
    reader=_read,
    expects="an object with a `response`",
    refusals=("error resuming session", "invalid session", "no previous sessions"),
    connect=_connect,
    acp=OverAcp(
        command=("gemini", "--acp"),
        # An entry in `session/new` cannot permit postroom's tools, and a permission request does not name the
        # server.
        connects_by_settings=True,
        session_to_load=_session_to_load,
        replays_after_answer=True,
    ),
)
