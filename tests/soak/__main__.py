"""Kills a server repeatedly under load, and compares the books; exit code 1 if there is a fault.

PYTHONPATH=tests python -m soak --kills 2000
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from soak.killing import Soak, Soaked, soak
from soak.several import soak_several


def main() -> None:
    """Read the options, soak, and print what came of it."""
    asked = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    asked.add_argument("--kills", type=int, default=100, help="how often something is killed")
    asked.add_argument(
        "--seconds", type=float, default=0, help="go on for so long, however many kills that is"
    )
    asked.add_argument(
        "--kill-every", type=float, default=0, help="seconds between kills; 0: at random, up to 2"
    )
    asked.add_argument(
        "--servers",
        type=int,
        default=1,
        help="several: on PostgreSQL, behind Caddy, for --seconds; and more faults",
    )
    asked.add_argument(
        "--networks",
        action="store_true",
        help="each of several in a network of its own, whose cable to the database is pulled out",
    )
    asked.add_argument(
        "--sessions", type=int, default=20, help="how many ask at once, over mail and three channels"
    )
    asked.add_argument(
        "--agents",
        type=int,
        default=0,
        help="agents with the official MCP SDK, besides those of the sessions",
    )
    asked.add_argument(
        "--think", type=float, default=1.0, help="the longest pause of each before it asks on, seconds"
    )
    asked.add_argument("--look-every", type=int, default=50, help="kills after which the books are compared")
    asked.add_argument("--folder", type=Path, help="keep the data and the server's log here")
    options = vars(asked.parse_args())
    folder = options.pop("folder")
    chosen = Soak(**options)
    with tempfile.TemporaryDirectory(prefix="postroom-soak-") as temporary:
        soaking = soak if chosen.servers == 1 else soak_several
        done = asyncio.run(soaking(chosen, folder or Path(temporary), tell))
    tell(summary(done))
    for finding in done.findings:
        tell(finding)
    sys.exit(any(done.findings))


def tell(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def summary(done: Soaked) -> str:
    """Return what came of it in a few lines."""
    taken = Counter(one.channel for one in done.asked if one.is_accepted)
    channels = ", ".join(f"{number:,} by {channel}" for channel, number in sorted(taken.items()))
    told = sum(bool(one.told and one.wanted) for one in done.asked)
    marked = sum(len(one.heard.texts) - one.heard.unmarked for one in done.asked)
    memory = " ".join(f"{one / 2**20:.0f}" for one in done.memory)
    return (
        f"{done.kills + done.programs + done.commands:,} kills in {done.seconds:,.0f} s: {done.kills:,} of the server "
        f"({done.while_starting:,} of them while it started), {done.programs:,} of programs that it ran, "
        f"{done.commands:,} of commands; the longest start took {done.longest_start:.1f} s\n"
        f"{taken.total():,} messages taken: {channels}; {told:,} were told why there is no answer, "
        f"{marked:,} answers were repeated and marked\n"
        f"{done.looks} looks; memory before kills, in MB: {memory}\n"
        f"{done.findings}"
    )


if __name__ == "__main__":
    main()
