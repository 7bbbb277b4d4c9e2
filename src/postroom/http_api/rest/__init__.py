"""Mail over REST: one address for each operation, generated from the same table as the MCP tools."""
