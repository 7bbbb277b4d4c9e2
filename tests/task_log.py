"""Checks the claims of tasks in the log of a project.

No task has two holders, no epoch is given twice, and only a holder finishes a task.
"""

from collections.abc import Iterable, Mapping
from typing import Any

ENDS = frozenset(
    {"task.released", "task.lease_ended", "task.blocked", "task.review", "task.done", "task.cancelled"}
)


def check_claims(events: Iterable[Mapping[str, Any]]) -> dict[int, tuple[str, int]]:
    """Return the tasks that are held at the end, each with its holder and epoch."""
    held = dict[int, tuple[str, int]]()
    epochs = dict[int, int]()
    reviewed = set[int]()
    for event in events:
        task, epoch = event["detail"].get("task_id"), event["detail"].get("epoch")
        if event["kind"] == "task.claimed":
            assert task not in held, f"{event} while {held[task]} holds it"
            assert epoch == epochs.get(task, 0) + 1, event
            epochs[task] = epoch
            held[task] = (event["agent"], epoch)
        elif event["kind"] in ENDS:
            was_held = task in held
            if was_held:
                assert held.pop(task)[1] == epoch, event
            if event["kind"] == "task.review":
                assert was_held, f"{event} of a task that nobody holds"
                reviewed.add(task)
            else:
                is_checked = task in reviewed
                reviewed.discard(task)
                assert was_held or is_checked or event["kind"] != "task.done", f"{event} by no holder"
    return held
