"""MCP over agent mail: a thin registration of operations as tools and of their views as resources.

The SDK is loaded by who uses it: `server`, `short_way` and `endpoint` need it, the rest does not.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.mcp_server.server import PostroomMcpServer

__all__ = ["PostroomMcpServer"]


def __getattr__(name: str) -> object:
    """Load the server when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from postroom.mcp_server import server

    return server.PostroomMcpServer
