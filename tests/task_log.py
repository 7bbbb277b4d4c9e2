"""Checks the claims of tasks in the log of a project: no task has two holders, and no epoch is given twice."""

from collections.abc import Iterable, Mapping
from typing import Any

ENDS = frozenset(
    {"task.released", "task.lease_ended", "task.blocked", "task.review", "task.done", "task.cancelled"}
)


def check_claims(events: Iterable[Mapping[str, Any]]) -> dict[int, tuple[str, int]]:
    """Return the tasks that are held at the end, each with its holder and epoch."""
    held = dict[int, tuple[str, int]]()
    epochs = dict[int, int]()
    for event in events:
        task, epoch = event["detail"].get("task_id"), event["detail"].get("epoch")
        if event["kind"] == "task.claimed":
            assert task not in held, f"{event} while {held[task]} holds it"
            assert epoch == epochs.get(task, 0) + 1, event
            epochs[task] = epoch
            held[task] = (event["agent"], epoch)
        elif event["kind"] in ENDS and task in held:
            assert held.pop(task)[1] == epoch, event
    return held
