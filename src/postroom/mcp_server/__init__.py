"""The MCP interface: offers mail operations as tools, and views of the data as resources.

Importing this package does not load the MCP SDK: only `server`, `short_way` and `endpoint` load it.
"""
