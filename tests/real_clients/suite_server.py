"""The tools, resources and prompts that the conformance suite calls, through postroom's own middleware and endpoint.

The suite's scenarios name what they call, such as `test_simple_text`. Everything between them and these answers is the
product: authentication, request limits, the endpoint's reading of messages, and the configured transport of the SDK.
"""

import asyncio
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import uvicorn
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import MCPServer
from mcp.types import (
    AudioContent,
    CallToolResult,
    Completion,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
)
from starlette.routing import Route

from postroom.app.operations import ALL_OPERATIONS
from postroom.http_api.guard import Credentials, Guard, GuardRules
from postroom.http_api.permissions import table
from postroom.http_api.routes import application
from postroom.mcp_server.endpoint import McpOverHttp
from postroom.mcp_server.loading import LoadedOnUse
from rest_room import LIMIT, TOKEN, Edge, token_check

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
EMPTY = {"type": "object", "properties": {}}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
ADDRESS = {
    "$schema": DIALECT,
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


def text(words: str) -> TextContent:
    return TextContent(type="text", text=words)


def image() -> ImageContent:
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def embedded(uri: str, kind: str, words: str) -> EmbeddedResource:
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=words)
    )


ANSWERS: Mapping[str, list[Any]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [image()],
    "test_audio_content": [AudioContent(type="audio", data=WAV, mime_type="audio/wav")],
    "test_embedded_resource": [
        embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
    "json_schema_2020_12_tool": [text("ok")],
}


def said(*contents: Any) -> GetPromptResult:
    return GetPromptResult(messages=[PromptMessage(role="user", content=one) for one in contents])


class SuiteServer(MCPServer[Any]):
    """Answers what the suite asks, and nothing of postroom's."""

    def __init__(self) -> None:
        super().__init__(name="suite", log_level="ERROR")

        @self.completion()
        async def complete(_ref: object, argument: Any, _context: object) -> Completion:
            return Completion(values=[one for one in ("test-1", "test-2") if one.startswith(argument.value)])

    def end_listening(self) -> None:
        """Nobody listens."""

    async def list_tools(self) -> list[Tool]:
        schemas = {"json_schema_2020_12_tool": ADDRESS}
        names = [*ANSWERS, "test_error_handling"]
        return [
            Tool(name=one, description=f"For the suite: {one}", input_schema=schemas.get(one, EMPTY))
            for one in names
        ]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        if name not in ANSWERS:
            return CallToolResult(
                content=[text("This tool intentionally returns an error for testing")], is_error=True
            )
        return CallToolResult(content=ANSWERS[name])

    async def list_resources(self) -> list[Resource]:
        return [
            Resource(uri=f"test://static-{kind}", name=f"static-{kind}", mime_type=mime)
            for kind, mime in (("text", "text/plain"), ("binary", "image/png"))
        ]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return [ResourceTemplate(uri_template="test://template/{id}/data", name="template")]

    async def read_resource(self, uri: Any, context: Any = None) -> list[ReadResourceContents]:
        if str(uri) == "test://static-binary":
            return [ReadResourceContents(content=b64decode(PNG), mime_type="image/png")]
        if str(uri) == "test://static-text":
            words = "This is the content of the static text resource."
            return [ReadResourceContents(content=words, mime_type="text/plain")]
        number = str(uri).split("/")[-2]
        return [ReadResourceContents(content=f'{{"id":"{number}"}}', mime_type="application/json")]

    async def list_prompts(self) -> list[Prompt]:
        arguments = {
            "test_prompt_with_arguments": ("arg1", "arg2"),
            "test_prompt_with_embedded_resource": ("resourceUri",),
        }
        return [
            Prompt(
                name=f"test_{one}",
                description=f"For the suite: {one}",
                arguments=[
                    PromptArgument(name=name, description=name, required=True)
                    for name in arguments.get(f"test_{one}", ())
                ],
            )
            for one in (
                "simple_prompt",
                "prompt_with_arguments",
                "prompt_with_embedded_resource",
                "prompt_with_image",
            )
        ]

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Any = None
    ) -> GetPromptResult:
        given = arguments or {}
        if name == "test_prompt_with_arguments":
            return said(text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"))
        if name == "test_prompt_with_embedded_resource":
            words = "Embedded resource content for testing."
            return said(embedded(given["resourceUri"], "text/plain", words), text("Please process it."))
        if name == "test_prompt_with_image":
            return said(image(), text("Please analyze the image above."))
        return said(text("This is a simple prompt for testing."))


@contextmanager
def served() -> Iterator[Any]:
    """Serve the suite's own tools on a free port; yield the address and the token of the operator."""
    ready, held = threading.Event(), SimpleNamespace(address=("127.0.0.1", 0), token=TOKEN)

    def serve() -> None:
        asyncio.run(_serve(held, ready))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(30), "the server of the suite did not start"
    try:
        yield held
    finally:
        held.server.should_exit = True
        thread.join(30)


async def _serve(held: Any, ready: threading.Event) -> None:
    edge = Edge()
    mcp = LoadedOnUse(lambda: McpOverHttp(SuiteServer(), max_request_bytes=LIMIT, short=False))  # type: ignore[arg-type]
    door = Guard(
        application([Route("/mcp", mcp)], permissions=table(ALL_OPERATIONS)),
        GuardRules(max_request_bytes=LIMIT),
        Credentials(
            is_operator=token_check(TOKEN),
            sessions=edge.sessions,
            is_agent=edge.mail.knows_token,
            grant_of=edge.tokens.recognise,
        ),
    )
    held.server = uvicorn.Server(
        uvicorn.Config(door, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(mcp.run())
        serving = group.create_task(held.server.serve())
        while not held.server.started and not serving.done():
            await asyncio.sleep(0)
        held.address = held.server.servers[0].sockets[0].getsockname()
        ready.set()
        await serving
        mcp.end()
    edge.close()
