"""Four processes whose budget is used up ask one question, also when all of them are killed."""

from pathlib import Path
from uuid import uuid4

import pytest

from dispatch_room import eventually
from embedded_room import answer_open_question
from faults.storm import Storm, Workers, enqueued
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.embedded import Mailbox
from postroom.stores.store import Transaction
from postroom.testing import History

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("postgres_dsn")]
STORM = Storm(runs=120, threads=120, workers=4, at_once=8, kill_every=0, budget=20)


async def test_one_question_for_all_that_four_processes_hold(postgres_dsn: str, tmp_path: Path) -> None:
    schema, log = f"budgets_{uuid4().hex}", tmp_path / "log"
    async with Mailbox.open(postgres_dsn, None, schema=schema) as mailbox:
        accepted = await enqueued(mailbox, STORM)
        workers = Workers(STORM, [postgres_dsn] * STORM.workers, schema, log)
        await workers.start_all()
        for round_number in (1, 2):
            asker = await eventually(lambda: _all_held(mailbox))
            assert len(History.read(log, accepted=accepted).ended) == round_number * STORM.budget
            for number in range(STORM.workers):
                await workers.end(number)
            workers.processes.clear()
            await workers.start_all()
            assert (await eventually(lambda: _all_held(mailbox))).run_id == asker.run_id
            await answer_open_question(await mailbox.handle(asker.run_id), approved=True, by="Ann")
        for number in range(STORM.workers):
            await workers.end(number)


async def _all_held(mailbox: Mailbox) -> RunRecord | None:
    """Return the run that asks when nothing executes, and nothing is to be tried."""

    def is_quiet(tx: Transaction) -> bool:
        queue = tx.runs.dispatches
        return not queue.due_threads(1) and not queue.claimed_by_limit()

    waiting = await mailbox.stores.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    asking = [run for run in waiting if run.open_tickets]
    assert len(asking) <= 1
    return asking[0] if asking and await mailbox.stores.store.read(is_quiet) else None
