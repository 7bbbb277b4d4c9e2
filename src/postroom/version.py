"""The version of postroom, read by the build and shown by `postroom version`."""

__version__ = "0.2.0"
