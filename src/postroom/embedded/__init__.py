"""The run queue as a library: a program opens a mailbox, enqueues work for coroutines, and awaits results."""

from postroom.embedded.handle import RunEvent, RunHandle, RunState, State
from postroom.embedded.items import Item
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Answer, Run

__all__ = ["Answer", "Item", "Mailbox", "Run", "RunEvent", "RunHandle", "RunState", "State"]
