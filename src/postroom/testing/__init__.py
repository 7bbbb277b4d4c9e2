"""The public test kit: a mailbox with a clock to move, work that fails as planned, a check of the history.

Needs no test framework. `mailbox`, `check` and what goes with them are for programs that run on the mailbox;
for those who write a store, a channel or a runner the promises are in `postroom.testing.conformance`, and
`channel`, `changes`, `faults` and `run_faults` beside it.
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
