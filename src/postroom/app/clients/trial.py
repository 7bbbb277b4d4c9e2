"""Tries what stands in a client's file: reads it as the client would, and makes a real MCP call by it."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

import httpx2
from mcp import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from postroom.app.clients import files, json_edit, toml_edit
from postroom.app.clients.spots import Place
from postroom.app.clients.table import TOKEN_NAME, Client
from postroom.app.clients.wants import NAME
from postroom.app.tokens import redact
from postroom.contracts.errors import ConfigError

PATIENCE: Final = timedelta(seconds=20)
_ADDRESSES: Final = ("url", "httpUrl", "serverUrl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial saw."""

    state: Literal["answered", "not tried", "failed"]
    detail: str
    remedy: str = ""


def entry_of(client: Client, place: Place) -> Mapping[str, object]:
    """Return our entry as it stands in the client's file.

    Raises:
        ConfigError: there is none.
        ClientFileRefused, NotJson, NotToml: the file cannot be read.
    """
    text = files.look(place.path, place.base).text
    path = (*client.path, NAME)
    if place.path.suffix == ".toml":
        found = toml_edit.find(text, path)
    else:
        node = json_edit.find(text, path)
        found = None if node is None else node.value()
    if not isinstance(found, Mapping):
        raise ConfigError(f"no entry {NAME} stands in {place.path}", value=str(place.path))
    return found


def try_out(
    client: Client, entry: Mapping[str, object], environment: Mapping[str, str], folder: Path
) -> Trial:
    """Call the server as the client will: begin, list the tools, ask for its health. Bounded in time."""
    if _asks_for(client, entry) and not environment.get(TOKEN_NAME):
        return Trial(
            state="not tried",
            detail=f"{TOKEN_NAME} is not set here, and the client reads it"
            + (" from the person" if client.asks_for_token else ""),
            remedy=f'set it where the client is started: export {TOKEN_NAME}="$(cat .../token)"',
        )
    try:
        return asyncio.run(_tried(client, entry, environment, folder))
    except Exception as error:  # the edge around one trial: whatever the library raises is what was seen
        return Trial(
            state="failed", detail=_told(error), remedy="see `postroom status` and `postroom doctor`"
        )


def _asks_for(client: Client, entry: Mapping[str, object]) -> bool:
    return any(key in entry for key in _ADDRESSES) and bool(client.token)


async def _tried(
    client: Client, entry: Mapping[str, object], environment: Mapping[str, str], folder: Path
) -> Trial:
    async with (
        asyncio.timeout(PATIENCE.total_seconds()),
        _connected(client, entry, environment, folder) as mcp,
    ):
        tools = await mcp.list_tools()
        health = await mcp.call_tool("health_check", {})
        if health.is_error:
            raise ConfigError(f"health_check failed: {health.content}")
        found = health.structured_content or {}
        return Trial(
            state="answered",
            detail=f"{len(tools.tools)} tools, health {found.get('status', 'unknown')}",
        )


@asynccontextmanager
async def _connected(
    client: Client, entry: Mapping[str, object], environment: Mapping[str, str], folder: Path
) -> AsyncIterator[McpClient]:
    address = next((str(entry[key]) for key in _ADDRESSES if key in entry), "")
    async with AsyncExitStack() as stack:
        if address:
            headers = _headers(client, entry, environment)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
            transport = streamable_http_client(address, http_client=http)
        else:
            silent = stack.enter_context(open(os.devnull, "w"))  # noqa: ASYNC230, PTH123, SIM115 - no disk is behind it, and the stack closes it
            transport = stdio_client(_command(entry, environment, folder), errlog=silent)
        yield await stack.enter_async_context(McpClient(transport))


def _headers(client: Client, entry: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    token = environment.get(TOKEN_NAME, "")
    if variable := entry.get("bearer_token_env_var"):
        return {"Authorization": f"Bearer {environment.get(str(variable), '')}"}
    found = entry.get("headers")
    written = found if isinstance(found, Mapping) else {}
    return {str(name): str(value).replace(client.token, token) for name, value in written.items()}


def _command(
    entry: Mapping[str, object], environment: Mapping[str, str], folder: Path
) -> StdioServerParameters:
    command, arguments = entry.get("command"), entry.get("args", [])
    words = [str(one) for one in (command if isinstance(command, list) else [command])]
    words += [str(one) for one in (arguments if isinstance(arguments, list) else [])]
    added = entry.get("env", entry.get("environment", {}))
    given = {str(name): str(value) for name, value in added.items()} if isinstance(added, Mapping) else {}
    return StdioServerParameters(command=words[0], args=words[1:], env={**environment, **given}, cwd=folder)


def _told(error: BaseException) -> str:
    """Return what failed in one line, without what a token looks like."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return redact(re.sub(r"\s+", " ", f"{type(error).__name__}: {error}"))[:300]
