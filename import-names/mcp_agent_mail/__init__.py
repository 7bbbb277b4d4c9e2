"""Import the mail system as `mcp_agent_mail`. The modules only call `postroom`.

The modules of this package keep module-level state, because their callers expect it. `postroom` has none.
"""
