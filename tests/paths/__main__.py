"""make paths [OPTIONS="--show PATH..."]: count what the paths pass, next to the limits in limits.json."""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

import msgspec

from paths import FILE, Limit, limits, measured, passed
from paths.plays import PLAYS
from paths.tracing import Trace


def play(name: str) -> None:
    """Play one path in this process, print its figures as JSON, and end the process."""
    logging.disable(logging.CRITICAL)
    trace = Trace()
    trace.install()
    with tempfile.TemporaryDirectory(prefix="paths-") as folder:
        asyncio.run(PLAYS[name](trace, Path(folder)))
    print(msgspec.json.encode(trace.figures()).decode(), flush=True)
    os._exit(0)


def main() -> int:
    """Print a line for each path."""
    asked = argparse.ArgumentParser(prog="paths", description=__doc__)
    asked.add_argument("names", nargs="*", metavar="PATH", help=f"{', '.join(PLAYS)}; without it all")
    asked.add_argument("--show", action="store_true", help="list the functions and the types of records")
    asked.add_argument(
        "--lower", action="store_true", help="write figures below their limits into limits.json"
    )
    asked.add_argument("--play", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.play:
        play(given.play)
    if unknown := set(given.names) - set(PLAYS):
        asked.error(f"no path is named {', '.join(sorted(unknown))}: {', '.join(PLAYS)}")
    known = limits()
    print(f"{'path (at most)':20}" + "".join(f"{column:>15}" for column in Limit._fields))
    for name in given.names or PLAYS:
        figures = measured(name)
        counted, most = passed(figures), known.get(name, passed(figures))
        columns = [f"{count} ({limit})" for count, limit in zip(counted, most, strict=True)]
        print(f"{name:20}" + "".join(f"{column:>15}" for column in columns), flush=True)
        known[name] = Limit(*map(min, counted, most))
        if given.show:
            print("types of records:", *figures.records, "functions:", *figures.entered, sep="\n  ")
    if given.lower:
        lines = (f'  "{name}": {list(limit)}' for name, limit in known.items())
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
