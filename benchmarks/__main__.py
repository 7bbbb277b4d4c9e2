"""Runs the benchmarks named on the command line, or all of them: `python -m benchmarks sending reading`.

`--tiny` has each do as little as shows that it still runs.
"""

import asyncio
import inspect
import os
import platform
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.figures import TINY

ALL = (
    "shape",
    "starting",
    "layers",
    "http",
    "pages",
    "inbox",
    "timeline",
    "sending",
    "servers",
    "held_snapshots",
    "reading",
    "globs",
    "archive",
    "flatness",
    "catching_up",
    "dispatch_store",
    "dispatch_mailbox",
    "enqueue_many",
    "backlog",
    "embedded",
    "waiting",
    "gateway",
    "chat_files",
    "schedules",
    "upkeep",
    "examination",
    "waking",
    "hooks",
)


def main() -> None:
    """Print a table for each benchmark."""
    words = sys.argv[1:]
    if "--tiny" in words:
        os.environ[TINY] = "yes"  # also for the processes that a benchmark starts
    chosen = [word for word in words if word != "--tiny"] or ALL
    unknown = set(chosen) - set(ALL)
    if unknown:
        raise SystemExit(f"no benchmark is named {', '.join(sorted(unknown))}; there are: {', '.join(ALL)}")
    print(f"Python {platform.python_version()} on {platform.system()}")
    # The PostgreSQL server and the channel of the tests; also for the processes that a benchmark starts.
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    for name in chosen:
        run = import_module(f"benchmarks.{name}").main
        if inspect.iscoroutinefunction(run):
            asyncio.run(run())
        else:
            run()


if __name__ == "__main__":
    main()
