"""Values and ports that every room shares: no I/O, no asyncio primitives, no third-party import."""
