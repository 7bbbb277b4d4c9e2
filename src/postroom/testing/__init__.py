"""The public test kit: a mailbox with a manual clock, work that fails as planned, a check of the history.

The kit needs no test framework. Programs that run on the mailbox use `mailbox` and `check`. Authors of a
channel plug-in use `channels`, which contains the promises that every channel must keep as tests.
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
