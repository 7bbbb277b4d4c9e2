"""Loads the modules that only a server needs."""

import gc
from collections.abc import Callable


def server() -> Callable[..., int]:
    """Import the server's modules, and return the function that runs a server."""
    gc.disable()
    try:
        from postroom.app.serve import run
    finally:
        gc.enable()
    return run
