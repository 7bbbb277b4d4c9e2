"""MCP over agent mail: a thin registration of operations as tools and of their views as resources.

The SDK is loaded by its users: `server`, `short_way` and `endpoint` need it, the rest does not.
"""
