"""`postroom` at another time of the wall clock: `python at_instant.py <ms since the epoch> <words of postroom>`.

What the first build left is looked at as if it had been left a moment ago: leases, ages and retention are then what
they were, whenever the test runs. The clock goes on from the instant that is given.
"""

import runpy
import sys
import time


def begin_at(instant: int) -> None:
    """Move the wall clock of this process."""
    real_ns, real = time.time_ns, time.time
    offset = instant * 1_000_000 - real_ns()
    time.time_ns = lambda: real_ns() + offset
    time.time = lambda: real() + offset / 1e9


if __name__ == "__main__":
    begin_at(int(sys.argv.pop(1)))
    runpy.run_module("postroom", run_name="__main__", alter_sys=True)
