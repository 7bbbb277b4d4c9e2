"""The command line: one module for each group of commands, and the small program for MCP over stdio."""
