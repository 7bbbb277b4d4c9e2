"""Under which names it is kept where in a trace messages and runs are, and what it is that a run follows."""

from collections.abc import Sequence

from postroom.contracts.store import RecordReads
from postroom.mail.context import WriteContext


def message_trace(message_id: int | str) -> str:
    """Return the name under which a message's place in a trace is kept."""
    return f"message/{message_id}"


def run_trace(run_id: str) -> str:
    """Return the name under which a run's place in a trace is kept."""
    return f"run/{run_id}"


def note_trace(context: WriteContext, message_id: int, traceparent: str | None) -> None:
    """Keep where in a trace a message was written; nothing where nobody watches."""
    kept = traceparent or context.caller.trace
    if kept is not None:
        context.tx.put_trace(message_trace(message_id), kept)


def followed(tx: RecordReads, run_id: str, messages: Sequence[int]) -> list[str]:
    """Return what a run goes on from: what it did before, then the messages that it was given, in order."""
    names = [run_trace(run_id), *map(message_trace, messages)]
    found = tx.traces(names)
    return [found[name] for name in names if name in found]
