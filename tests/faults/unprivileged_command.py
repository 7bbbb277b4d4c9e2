"""Run as a separate process, which gives up the rights of root for good: runs a command of postroom as another user.

unprivileged_command.py USER UMASK WORD...
"""

import importlib
import os
import pkgutil
import sys

import postroom

_LATE = (
    "importlib.readers",
    "encodings.ascii",
    "encodings.idna",
    "filelock",
    "uvicorn.loops.asyncio",
    "uvicorn.lifespan.on",
)


def load_all() -> None:
    """Load what a command may load on its way: the libraries may be readable for root alone."""
    for name in _LATE:
        importlib.import_module(name)
    for found in pkgutil.walk_packages(postroom.__path__, "postroom."):
        if found.name.split(".")[1] in (
            "app",
            "cli",
            "stores",
            "mail",
            "http_api",
            "mcp_server",
            "log",
            "executors",
        ):
            importlib.import_module(found.name)


if __name__ == "__main__":
    user, mask, *words = sys.argv[1:]
    load_all()
    from postroom.cli.main import main

    os.umask(int(mask, 8))
    os.setgroups([])
    os.setresgid(int(user), int(user), int(user))
    os.setresuid(int(user), int(user), int(user))
    sys.exit(main(words))
