"""The version of postroom, read by the build and shown by `postroom version`."""

__version__ = "0.1.0"
