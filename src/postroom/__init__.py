"""postroom: durable mail, file reservations and runs for a team of AI agents and the people they work with.

Each name is imported when it is first used, so that a program that only sends mail does not load the queue.
"""

from postroom.version import __version__

TYPE_CHECKING = False  # not from `typing`: a hook runs at every tool call and must not wait for that import
if TYPE_CHECKING:
    from postroom.contracts.activation import BusyPolicy, Recovery, RunActivation
    from postroom.contracts.errors import (
        GiveUp,
        IdempotencyConflict,
        InvalidArgument,
        MailboxClosed,
        MailboxForked,
        PostroomError,
        QueueFull,
        RecordTooNew,
        RunUnsuccessful,
        StaleDecision,
        StoreClosed,
        StoreUnavailable,
        SubmissionRejected,
    )
    from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
    from postroom.contracts.limits import Budget, BudgetScope, BudgetWindow, Limit, LimitScope
    from postroom.contracts.messages import Message
    from postroom.dispatch.config import MailboxConfig
    from postroom.embedded import Answer, Item, Mailbox, Run, RunEvent, RunHandle, RunState, State

_HOMES = {
    "AgentRunResult": "postroom.contracts.executor",
    "Answer": "postroom.embedded",
    "Budget": "postroom.contracts.limits",
    "BudgetScope": "postroom.contracts.limits",
    "BudgetWindow": "postroom.contracts.limits",
    "BusyPolicy": "postroom.contracts.activation",
    "GiveUp": "postroom.contracts.errors",
    "IdempotencyConflict": "postroom.contracts.errors",
    "InvalidArgument": "postroom.contracts.errors",
    "Item": "postroom.embedded",
    "Limit": "postroom.contracts.limits",
    "LimitScope": "postroom.contracts.limits",
    "Mailbox": "postroom.embedded",
    "MailboxClosed": "postroom.contracts.errors",
    "MailboxConfig": "postroom.dispatch.config",
    "MailboxForked": "postroom.contracts.errors",
    "Message": "postroom.contracts.messages",
    "PostroomError": "postroom.contracts.errors",
    "QueueFull": "postroom.contracts.errors",
    "RecordTooNew": "postroom.contracts.errors",
    "Recovery": "postroom.contracts.activation",
    "Run": "postroom.embedded",
    "RunActivation": "postroom.contracts.activation",
    "RunDispatchExecutor": "postroom.contracts.executor",
    "RunEvent": "postroom.embedded",
    "RunHandle": "postroom.embedded",
    "RunState": "postroom.embedded",
    "RunUnsuccessful": "postroom.contracts.errors",
    "StaleDecision": "postroom.contracts.errors",
    "State": "postroom.embedded",
    "StoreClosed": "postroom.contracts.errors",
    "StoreUnavailable": "postroom.contracts.errors",
    "SubmissionRejected": "postroom.contracts.errors",
}

__all__ = [
    "AgentRunResult",
    "Answer",
    "Budget",
    "BudgetScope",
    "BudgetWindow",
    "BusyPolicy",
    "GiveUp",
    "IdempotencyConflict",
    "InvalidArgument",
    "Item",
    "Limit",
    "LimitScope",
    "Mailbox",
    "MailboxClosed",
    "MailboxConfig",
    "MailboxForked",
    "Message",
    "PostroomError",
    "QueueFull",
    "RecordTooNew",
    "Recovery",
    "Run",
    "RunActivation",
    "RunDispatchExecutor",
    "RunEvent",
    "RunHandle",
    "RunState",
    "RunUnsuccessful",
    "StaleDecision",
    "State",
    "StoreClosed",
    "StoreUnavailable",
    "SubmissionRejected",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return all public names, including names that are not imported yet."""
    return sorted({*globals(), *__all__})
