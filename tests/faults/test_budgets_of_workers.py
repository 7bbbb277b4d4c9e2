"""Four processes whose budget is used up ask one question, also when all of them are killed."""

from pathlib import Path
from uuid import uuid4

import pytest

from dispatch_room import Counting, eventually
from faults.storm import History, Storm, Workers, submitted
from postgres_runs_room import OpenedRuns
from postroom.contracts.activation import RunActivation
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.transactions import Transaction
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox

pytestmark = pytest.mark.usefixtures("postgres_dsn")
STORM = Storm(runs=120, threads=120, workers=4, at_once=8, kill_every=0, budget=20)
YES = ToolCallResume(decision_id="yes", result={"approved": True}, by="Ann")


async def test_one_question_for_all_that_four_processes_hold(postgres_dsn: str, tmp_path: Path) -> None:
    schema, history = f"budgets_{uuid4().hex}", tmp_path / "history"
    stores = await OpenedRuns.open(postgres_dsn, schema=schema)
    writer = Mailbox(Counting(), stores, consumer_id="writer", config=MailboxConfig(max_concurrent_runs=0))
    await submitted(writer, STORM)
    workers = Workers(STORM, [postgres_dsn] * STORM.workers, schema, history)
    await workers.start_all()
    for round_number in (1, 2):
        asker = await eventually(lambda: _all_held(stores))
        assert len(History.read(history).ended) == round_number * STORM.budget
        for number in range(STORM.workers):
            await workers.kill(number)
        workers.processes.clear()
        await workers.start_all()
        assert (await eventually(lambda: _all_held(stores))).run_id == asker.run_id
        [ticket] = asker.open_tickets
        decided = [(ticket.tool_call_id, YES)]
        await writer.submit_background(
            RunActivation.new(asker.thread_id, [], continue_run_id=asker.run_id, decisions=decided)
        )
    for number in range(STORM.workers):
        await workers.kill(number)
    await writer.aclose()
    await stores.close()


async def _all_held(stores: OpenedRuns) -> RunRecord | None:
    """Return the run that asks when nothing executes, and nothing is to be tried."""

    def is_quiet(tx: Transaction) -> bool:
        queue = tx.runs.dispatches
        return not queue.due_threads(1) and not queue.claimed_by_limit()

    waiting = await stores.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    asking = [run for run in waiting if run.open_tickets]
    assert len(asking) <= 1
    return asking[0] if asking and await stores.store.read(is_quiet) else None
