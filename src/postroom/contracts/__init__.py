"""Values and ports that all packages share; the package does no I/O and imports no third-party code."""
