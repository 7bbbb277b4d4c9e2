"""What a summary of a project costs with a small log and with a long one."""

import asyncio
import sys
from functools import partial
from typing import Any

from benchmarks.application import PROJECT, fresh_application
from benchmarks.figures import Table, median, ms, p95, size, timed
from postroom.app.wiring import Application
from postroom.mail.context import Caller
from postroom.stores.mail.access import MailWrites

SMALL = size(1_000, 100)
ROUNDS = size(200, 3)
_BATCH = size(10_000, 100)
_RECENT = size(2_000, 100)
"""The newest events are of all kinds, so that a summary has all its sentences."""


async def main(large: int = size(1_000_000, 400)) -> None:
    """Print the table."""
    async with fresh_application() as small, fresh_application() as big:
        await _fill(small, SMALL)
        await _fill(big, large)
        table = Table(f"Catch up: {SMALL:,} against {large:,} events in the log, {ROUNDS} calls each")
        for what, more in (("the last day", {}), ("from the beginning", {"after": 0})):
            asked = {"project_key": PROJECT, **more}
            few, many = [
                await timed(ROUNDS, partial(one.mail.call, "catch_up", asked, caller=Caller(operator=True)))
                for one in (small, big)
            ]
            table.add(
                f"catch_up, {what}",
                f"median {ms(median(many))}, p95 {ms(p95(many))}",
                f"{ms(median(few))} with {SMALL:,}",
                median(many) / median(few),
                "p95 at most 50 ms",
            )


async def _fill(application: Application, events: int) -> None:
    """Log changes of files, and at the end tasks, notes and messages."""
    mail = application.mail
    await mail.call("ensure_project", {"human_key": PROJECT})
    who = {"project_key": PROJECT, "program": "p", "model": "m"}
    for name in ("Ada", "Ben"):
        await mail.call("register_agent", {**who, "name": name})

    def change(tx: MailWrites, count: int) -> None:
        for number in range(count):
            tx.note_changed_file(1, 1 + number % 2, f"src/{number % 500}.py", number)

    for first in range(0, events - _RECENT, _BATCH):
        await mail.store.write(partial(change, count=min(_BATCH, events - _RECENT - first)))
    left = max(0, events - await mail.store.read(lambda tx: tx.newest_entry(1)))
    for number in range(left // 5 + 1):  # each turn logs about five entries
        ada: dict[str, Any] = {"project_key": PROJECT, "agent_name": "Ada"}
        task = await mail.call("add_task", {**ada, "title": f"Task {number}"})
        await mail.call("claim_task", {**ada, "task_id": task["id"]})
        done = {"task_id": task["id"], "epoch": 1, "commit": "4f2a", "message": "It works."}
        await mail.call("done_task", {**ada, **done})
        message = {"sender_name": "Ada", "to": ["Ben"], "subject": f"About {number}", "body_md": "b"}
        await mail.call("send_message", {"project_key": PROJECT, **message})


if __name__ == "__main__":
    asyncio.run(main(*(int(word) for word in sys.argv[1:])))
