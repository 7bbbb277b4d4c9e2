"""The parts of a transaction besides mail: runs, chats, events and effects, each a short list of statements.

Each is decided on by changes and decides nothing itself.
"""

from typing import Protocol


class RunTables(Protocol):
    """Threads, runs, their messages, dispatches and input that waits."""


class ChatTables(Protocol):
    """What the chat gateway keeps: inbound messages, sessions and people."""


class EventTables(Protocol):
    """The event log, with scopes and sequences without gaps."""


class OutboxTables(Protocol):
    """Effects outside the database, stored with the change that asks for them."""
