"""postroom: durable mail, file reservations and runs for a team of AI agents and their people.

The names below load what they need when they are first used: a program that only sends mail loads no queue.
"""

from postroom.version import __version__

TYPE_CHECKING = False  # not from `typing`: a hook runs at every tool call and must not wait for that import
if TYPE_CHECKING:
    from postroom.contracts.activation import BusyPolicy, Recovery, RunActivation
    from postroom.contracts.budgets import Budget, BudgetScope, BudgetWindow
    from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
    from postroom.contracts.limits import Limit, LimitScope
    from postroom.contracts.messages import Message
    from postroom.dispatch.config import MailboxConfig
    from postroom.embedded import Answer, Item, Mailbox, Run, RunEvent, RunHandle, RunState, State

_HOMES = {
    "AgentRunResult": "postroom.contracts.executor",
    "Answer": "postroom.embedded",
    "Budget": "postroom.contracts.budgets",
    "BudgetScope": "postroom.contracts.budgets",
    "BudgetWindow": "postroom.contracts.budgets",
    "BusyPolicy": "postroom.contracts.activation",
    "Item": "postroom.embedded",
    "Limit": "postroom.contracts.limits",
    "LimitScope": "postroom.contracts.limits",
    "Mailbox": "postroom.embedded",
    "MailboxConfig": "postroom.dispatch.config",
    "Message": "postroom.contracts.messages",
    "Recovery": "postroom.contracts.activation",
    "Run": "postroom.embedded",
    "RunActivation": "postroom.contracts.activation",
    "RunDispatchExecutor": "postroom.contracts.executor",
    "RunEvent": "postroom.embedded",
    "RunHandle": "postroom.embedded",
    "RunState": "postroom.embedded",
    "State": "postroom.embedded",
}

__all__ = [
    "AgentRunResult",
    "Answer",
    "Budget",
    "BudgetScope",
    "BudgetWindow",
    "BusyPolicy",
    "Item",
    "Limit",
    "LimitScope",
    "Mailbox",
    "MailboxConfig",
    "Message",
    "Recovery",
    "Run",
    "RunActivation",
    "RunDispatchExecutor",
    "RunEvent",
    "RunHandle",
    "RunState",
    "State",
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
