"""The MCP server under its import name."""

from mcp_agent_mail.db import shared_application
from postroom.mcp_server.server import PostroomMcpServer

__all__ = ["build_mcp_server"]


def build_mcp_server() -> PostroomMcpServer:
    """Make an MCP server over this process's database; several share it.

    An in-memory client of the SDK or of `fastmcp` takes it as it is.
    """
    return shared_application().mcp_server()
