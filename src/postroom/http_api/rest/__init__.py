"""Mail over REST: an address for each operation, from the same table as the MCP tools."""
