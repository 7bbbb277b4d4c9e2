"""Loads what only a server needs."""

import gc
from collections.abc import Callable


def server() -> Callable[..., int]:
    """Return what runs a server. Nothing of what is loaded for it is garbage, so nobody looks for any."""
    gc.disable()
    try:
        from postroom.app.serve import run
    finally:
        gc.enable()
    return run
