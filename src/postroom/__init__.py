"""postroom: durable mail, file reservations and runs for a team of AI agents and their people.

The names below load what they need when they are first used: a program that only sends mail loads no queue.
"""

from postroom.version import __version__

TYPE_CHECKING = False  # not from `typing`: a hook runs at every tool call and must not wait for that import
if TYPE_CHECKING:
    from postroom.contracts.activation import BusyPolicy, Recovery, RunActivation, Strategy
    from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
    from postroom.contracts.messages import Message
    from postroom.contracts.runs import TerminationReason
    from postroom.dispatch.config import MailboxConfig
    from postroom.dispatch.mailbox import Mailbox
    from postroom.stores.memory import MemoryRunStores
    from postroom.stores.sqlite import SqliteStore

_HOMES = {
    "AgentRunResult": "postroom.contracts.executor",
    "BusyPolicy": "postroom.contracts.activation",
    "Mailbox": "postroom.dispatch.mailbox",
    "MailboxConfig": "postroom.dispatch.config",
    "MemoryRunStores": "postroom.stores.memory",
    "Message": "postroom.contracts.messages",
    "Recovery": "postroom.contracts.activation",
    "RunActivation": "postroom.contracts.activation",
    "RunDispatchExecutor": "postroom.contracts.executor",
    "SqliteStore": "postroom.stores.sqlite",
    "Strategy": "postroom.contracts.activation",
    "TerminationReason": "postroom.contracts.runs",
}

__all__ = [
    "AgentRunResult",
    "BusyPolicy",
    "Mailbox",
    "MailboxConfig",
    "MemoryRunStores",
    "Message",
    "Recovery",
    "RunActivation",
    "RunDispatchExecutor",
    "SqliteStore",
    "Strategy",
    "TerminationReason",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load a name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Name what is loaded later too: whoever explores the package sees every public name."""
    return sorted({*globals(), *__all__})
