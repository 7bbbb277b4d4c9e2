"""The mail room over REST: one address an operation, made from the table that the MCP tools are made from."""
