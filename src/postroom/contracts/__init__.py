"""Values and ports that all packages share: no I/O, no asyncio primitives, no third-party imports."""
