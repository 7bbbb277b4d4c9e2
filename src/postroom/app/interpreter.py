"""How Python itself is set in a server."""

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.0005
"""How long a thread that computes keeps the interpreter from one that waits; Python's own value is 0.005.

A send changes threads several times, and beside a thread that computes it may wait for that each time. On a
busy machine its p99 beside `doctor` was 2.5 times that of sends alone, and is 1.3; on a quiet one no
difference was seen. It costs no processor time that can be measured.
"""


def set_for_a_server() -> None:
    """Let threads wait shortly for one another, and the collector leave alone what is loaded now.

    Full runs of the collector are else the tail of every latency (docs/internals/benchmarks.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(SWITCH_SECONDS)
