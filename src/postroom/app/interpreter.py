"""The settings of the Python interpreter in a server."""

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.0005
"""How long a busy thread may keep the interpreter while another thread waits. The default is 0.005 s.

Each message that is sent changes threads several times, and may have to wait for a busy thread each time. On
a busy machine, the p99 latency of sends rose by a factor of 2.5 while `doctor` ran. With this value, the
latency rises by a factor of 1.3. On an idle machine, there was no difference. The value costs no measurable
CPU time.
"""


def set_for_a_server() -> None:
    """Tune thread switching and garbage collection for low latency (see docs/internals/benchmarks.md)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(SWITCH_SECONDS)
