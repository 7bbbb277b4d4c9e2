"""The public test kit: a mailbox with a manual clock, work that fails as planned, and checks.

The kit needs no test framework. Programs that use a mailbox are tested with `mailbox` and `check`. Authors of
a channel plug-in use `channels`, which contains tests for the promises that every channel must keep.
"""

from postroom.testing.checking import check
from postroom.testing.clock import ManualClock
from postroom.testing.history import Execution, ExecutionLog, History
from postroom.testing.mailboxes import ManualMailbox, mailbox
from postroom.testing.recording import record
from postroom.testing.work import Hanging, ProcessDied, crashes, fails

__all__ = [
    "Execution",
    "ExecutionLog",
    "Hanging",
    "History",
    "ManualClock",
    "ManualMailbox",
    "ProcessDied",
    "check",
    "crashes",
    "fails",
    "mailbox",
    "record",
]
