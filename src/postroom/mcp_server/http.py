"""MCP over HTTP: the SDK's server and transport, the short way beside them, the endpoint in front of both."""

from contextlib import AbstractAsyncContextManager

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Receive, Scope, Send

from postroom.mcp_server.endpoint import Endpoint
from postroom.mcp_server.server import PostroomMcpServer


class McpOverHttp:
    """An ASGI application that serves one MCP server, once it is running."""

    def __init__(
        self,
        server: PostroomMcpServer,
        *,
        max_request_bytes: int,
        is_traced: bool = False,
        short: bool = True,
    ) -> None:
        """Without `short` every message goes through the SDK, as tests and benchmarks compare."""
        server.streamable_http_app(
            json_response=True,
            stateless_http=True,
            max_request_body_size=max_request_bytes,
            # The door in front checks Host and Origin for every route alike.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        self._server = server
        self._sessions = server.session_manager
        short_way = server.short_way(is_traced=is_traced) if short else None
        self._endpoint = Endpoint(StreamableHTTPASGIApp(self._sessions), short_way)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        await self._endpoint(scope, receive, send)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run the SDK's transport while anybody is inside; enter it once."""
        return self._sessions.run()

    def end_listening(self) -> None:
        """Tell everybody who listens that this is the end."""
        self._server.end_listening()
