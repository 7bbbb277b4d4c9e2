"""Under which names it is kept where in a trace messages and runs are, and what it is that a run follows."""

from collections.abc import Sequence

from postroom.stores.mail.access import RecordReads


def message_trace(message_id: int | str) -> str:
    """Return the name under which a message's place in a trace is kept."""
    return f"message/{message_id}"


def run_trace(run_id: str) -> str:
    """Return the name under which a run's place in a trace is kept."""
    return f"run/{run_id}"


def followed(tx: RecordReads, run_id: str, messages: Sequence[int]) -> list[str]:
    """Return what a run goes on from: what it did before, then the messages that it was given, in order."""
    names = [run_trace(run_id), *map(message_trace, messages)]
    found = tx.traces(names)
    return [found[name] for name in names if name in found]
