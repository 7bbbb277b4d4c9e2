"""The public test kit: a clock to move, stores that fail on purpose, and the promises every store keeps.

Needs no test framework: a promise is a coroutine function that raises `AssertionError` when it is broken.
"""

from postroom.testing.clock import ManualClock
from postroom.testing.faults import LosingStore, RefusingStore, writes, writes_that

__all__ = ["LosingStore", "ManualClock", "RefusingStore", "writes", "writes_that"]
