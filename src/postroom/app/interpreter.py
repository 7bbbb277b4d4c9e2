"""The settings of the Python interpreter in a server."""

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.0005
"""How long a computing thread may hold the interpreter while another thread waits; the default is 0.005 s.

A send changes threads several times, and may have to wait for a computing thread each time. On a busy
machine, the p99 latency of sends rose to 2.5 times while `doctor` ran. With this value, it rises to 1.3
times. On an idle machine, there was no difference. The value costs no measurable processor time.
"""


def set_for_a_server() -> None:
    """Shorten the time that threads wait for each other, and exempt existing objects from garbage collection.

    Full garbage collections would otherwise dominate tail latency (docs/internals/benchmarks.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(SWITCH_SECONDS)
