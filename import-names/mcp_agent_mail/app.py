"""The MCP server, for callers of `mcp_agent_mail.app`."""

from mcp_agent_mail.db import shared_application
from postroom.mcp_server.server import PostroomMcpServer

__all__ = ["build_mcp_server"]


def build_mcp_server() -> PostroomMcpServer:
    """Return a new MCP server on this process's database. All servers of the process share the database.

    An in-memory client of the MCP SDK or of `fastmcp` accepts the server directly.
    """
    return shared_application().mcp_server()
