"""MCP over agent mail: a thin registration of the mail room's operations as tools and of its views as resources."""

from postroom.mcp_server.server import PostroomMcpServer

__all__ = ["PostroomMcpServer"]
