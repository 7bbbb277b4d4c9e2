"""Tells the event log again of committed messages that it may not know of; telling twice changes nothing."""

from collections.abc import Sequence

import structlog

from postroom.contracts.errors import InternalError, PostroomError
from postroom.contracts.messages import Message, MessageRecord
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery, RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.dispatch.core import Core
from postroom.dispatch.journal import CheckpointRepairTask, Journal

_LOG = structlog.get_logger(__name__)


class CheckpointRepair:
    """Repairs the log from the threads."""

    def __init__(self, core: Core, journal: Journal) -> None:
        self._core = core
        self._journal = journal

    async def record(
        self, thread_id: str, run_id: str, messages: Sequence[Message], first_seq: int, last_seq: int
    ) -> None:
        """Tell of messages that were committed as `first_seq` to `last_seq`.

        Raises:
            InternalError: there are not as many messages as numbers; nothing was told.
        """
        drafts = self._journal.of_messages(
            thread_id, run_id, messages, first_seq=first_seq, last_seq=last_seq
        )
        await self._journal.publish(*drafts)

    async def repair_all(self, statuses: tuple[RunStatus, ...] = ()) -> int:
        """Tell of the input of every run, or of those in a status; return how many messages that covers.

        A run that cannot be told of is logged and passed over: it must not keep the others.
        """
        covered, after = 0, ""
        while runs := await self._core.threads.list_runs(RunQuery(after=after, statuses=statuses)):
            for run in runs:
                covered += await self._repair_run(run)
            after = runs[-1].run_id
        return covered

    async def drain(self) -> None:
        """Perform the tasks of the repair queue; one whose messages are not there waits on."""
        for _ in range(len(self._journal.repairs)):
            task = self._journal.repairs.popleft()
            if not await self._perform(task):
                self._journal.repair_later(task)

    async def _repair_run(self, run: RunRecord) -> int:
        ids = run.input.trigger_message_ids if run.input else ()
        if not ids:
            return 0
        records = await self._core.threads.load_message_records(run.thread_id, ids)
        try:
            for first_seq, messages in _stretches(records):
                last_seq = first_seq + len(messages) - 1
                await self.record(run.thread_id, run.run_id, messages, first_seq, last_seq)
        except InternalError as error:
            _LOG.warning("events.not_repaired", run_id=run.run_id, reason=error.describe())
            return 0
        return len(records)

    async def _perform(self, task: CheckpointRepairTask) -> bool:
        query = MessageQuery(
            after=task.first_seq - 1,
            before=task.last_seq + 1,
            limit=min(task.last_seq - task.first_seq + 1, MAX_PAGE),
        )
        try:
            records = await self._core.threads.list_message_records(task.thread_id, query)
            await self.record(
                task.thread_id,
                task.run_id,
                [record.message for record in records],
                task.first_seq,
                task.last_seq,
            )
        except PostroomError as error:
            _LOG.info("events.repair_waits", thread_id=task.thread_id, reason=error.describe())
            return False
        return True


def _stretches(records: Sequence[MessageRecord]) -> list[tuple[int, list[Message]]]:
    """Return the messages in stretches without a gap, each with the number of its first."""
    found: list[tuple[int, list[Message]]] = []
    for record in records:
        if found and record.seq == found[-1][0] + len(found[-1][1]):
            found[-1][1].append(record.message)
        else:
            found.append((record.seq, [record.message]))
    return found
