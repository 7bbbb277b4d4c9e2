"""MCP over agent mail: a thin registration of operations as tools and of their views as resources."""

from postroom.mcp_server.server import PostroomMcpServer

__all__ = ["PostroomMcpServer"]
