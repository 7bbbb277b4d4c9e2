"""The version of postroom, which the build reads and `postroom version` shows."""

__version__ = "0.2.0"
