"""Loads the modules that only a server needs."""

import gc
from collections.abc import Callable


def server() -> Callable[..., int]:
    """Return the function that runs a server.

    The modules are imported without garbage collection, because imports create no garbage.
    """
    gc.disable()
    try:
        from postroom.app.serve import run
    finally:
        gc.enable()
    return run
