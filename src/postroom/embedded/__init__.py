"""The run queue as a library: a mailbox that a program opens, runs as coroutines, and handles to wait by."""

from postroom.embedded.handle import RunEvent, RunHandle, RunState, State
from postroom.embedded.items import Item
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Answer, Run

__all__ = ["Answer", "Item", "Mailbox", "Run", "RunEvent", "RunHandle", "RunState", "State"]
