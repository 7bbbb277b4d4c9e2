"""Names of stored places in traces, for messages and runs, and the places that a run follows."""

from collections.abc import Sequence

from postroom.stores.mail.access import RecordReads


def message_trace(message_id: int | str) -> str:
    """Return the name of a message's place in a trace."""
    return f"message/{message_id}"


def run_trace(run_id: str) -> str:
    """Return the name of a run's place in a trace."""
    return f"run/{run_id}"


def followed(tx: RecordReads, run_id: str, messages: Sequence[int]) -> list[str]:
    """Return the places that a run continues from.

    Its earlier place, then those of its messages, in order.
    """
    names = [run_trace(run_id), *map(message_trace, messages)]
    found = tx.traces(names)
    return [found[name] for name in names if name in found]
