"""Tests the configuration of a client: reads it as the client does, and makes a real MCP call."""

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, cast

import httpx2
from mcp import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from postroom.app import places
from postroom.app.clients.config_paths import ConfigFile
from postroom.app.clients.status import find_entry, read_url
from postroom.app.clients.table import TOKEN_NAME, Client, asks_for_token
from postroom.app.tokens import redact
from postroom.contracts.client_programs import NAME
from postroom.contracts.errors import ConfigError

PATIENCE: Final = timedelta(seconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of a trial call from a client to the server."""

    state: Literal["answered", "not tried", "failed"]
    detail: str
    remedy: str = ""


def try_out(client: Client, file: ConfigFile, environment: Mapping[str, str]) -> Trial:
    """Call the server with the entry in the client's file, and return the result.

    Raises:
        ClientFileRefused: The client's file cannot be read.
    """
    entry = find_entry(client, file)
    if entry is None:
        return Trial(state="failed", detail=f"{file.path} has no entry {NAME}")
    if read_url(entry) and not environment.get(TOKEN_NAME):
        token_file = places.token_file(places.data_dir(environment))
        token_note = (
            "the client asks the person for the token"
            if asks_for_token(entry)
            else ("the client reads the token from this variable")
        )
        return Trial(
            state="not tried",
            detail=f"the variable {TOKEN_NAME} is not set in this shell, and {token_note}",
            remedy=f"run export {TOKEN_NAME}=\"$(cat '{token_file}')\" before you start the client",
        )
    try:
        return asyncio.run(_try_call(client, entry, environment))
    except Exception as error:  # any error of the library is a result of the trial
        token = f"check that {TOKEN_NAME} contains the server's token, and " if read_url(entry) else ""
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup) and cause.exceptions:
            cause = cause.exceptions[0]
        detail = redact(re.sub(r"\s+", " ", f"{type(cause).__name__}: {cause}"))[:300]
        return Trial(state="failed", detail=detail, remedy=f"{token}run `postroom doctor`")


async def _try_call(client: Client, entry: Mapping[str, object], environment: Mapping[str, str]) -> Trial:
    async with asyncio.timeout(PATIENCE.total_seconds()), AsyncExitStack() as stack:
        if address := read_url(entry):
            token, headers = environment.get(TOKEN_NAME, ""), entry.get("headers")
            written = headers if isinstance(headers, Mapping) else {}
            ours = dict(cast("Mapping[str, str]", (client.http or {}).get("headers", {})))
            sent = {
                str(name): f"Bearer {token}" if value == ours.get(name) else str(value)
                for name, value in written.items()
            }
            if variable := entry.get("bearer_token_env_var"):
                sent = {"Authorization": f"Bearer {environment.get(str(variable), '')}"}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=sent))
            transport = streamable_http_client(address, http_client=http)
        else:
            silent = stack.enter_context(open(os.devnull, "w"))  # noqa: ASYNC230, PTH123, SIM115 - no disk is behind it, and the stack closes it
            command, arguments = entry.get("command"), entry.get("args", [])
            words = [str(item) for item in (command if isinstance(command, list) else [command])]
            words += [str(argument) for argument in (arguments if isinstance(arguments, list) else [])]
            added = entry.get("env", entry.get("environment", {}))
            given_fields = (
                {str(name): str(value) for name, value in added.items()} if isinstance(added, Mapping) else {}
            )
            transport = stdio_client(
                StdioServerParameters(command=words[0], args=words[1:], env={**environment, **given_fields}),
                errlog=silent,
            )
        mcp = await stack.enter_async_context(McpClient(transport))
        listed = [tool.name for tool in (await mcp.list_tools()).tools]
        if "health_check" not in listed:
            return Trial(state="answered", detail=f"{len(listed)} tools")
        health = await mcp.call_tool("health_check", {})
        if health.is_error:
            raise ConfigError(f"health_check failed: {health.content}")
        content = health.structured_content or {}
        return Trial(
            state="answered",
            detail=f"{len(listed)} tools, health {content.get('status', 'unknown')}",
        )
