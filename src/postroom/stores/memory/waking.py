"""Runners, and what they made of letters, over tables in memory."""

from collections.abc import Sequence
from itertools import islice
from typing import get_args

from postroom.contracts.errors import StoreError
from postroom.contracts.waking import AskedQuestion, Handling, KeptRunner, RunnerSource
from postroom.stores.memory.tables import Sitting, Tables


class MemoryWakingReads:
    """Look-ups over the tables as they are."""

    _tables: Tables

    def runner(self, agent_id: int) -> KeptRunner | None:
        """Return how an agent is run; None when it is not run by postroom."""
        return self._tables.waking.runners.get(agent_id)

    def runners(self, *, limit: int, after: int = 0) -> list[KeptRunner]:
        """Return runners by agent id, those after `after`."""
        return list(islice((row for row in self._tables.waking.runners if row.agent_id > after), limit))

    def with_runner(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return which of these agents have a runner, and when it was declared."""
        kept = (self._tables.waking.runners.get(agent_id) for agent_id in agent_ids)
        return {one.agent_id: one.updated_at for one in kept if one is not None}

    def handlings(self, message_ids: Sequence[int]) -> dict[int, dict[int, Handling]]:
        """Return what runs made of each message, by recipient; every message is there."""
        return {
            message_id: {
                row.agent_id: row for row in self._tables.waking.handlings.where("message", message_id)
            }
            for message_id in message_ids
        }

    def answering_run(self, message_id: int) -> str | None:
        """Return the run whose end a letter tells; None for one that somebody wrote."""
        return self._tables.waking.run_answers.get(message_id)


class MemoryWakingWrites(MemoryWakingReads):
    """Changes of the tables, undone when the transaction is."""

    def put_runner(self, agent_id: int, runner: str, *, declared_by: RunnerSource, now: int) -> None:
        """Say, or say anew, how an agent is run."""
        if agent_id not in self._tables.agents or declared_by not in get_args(RunnerSource):
            raise StoreError("the store refused: no such agent, or no such source", value=agent_id)
        kept = KeptRunner(agent_id=agent_id, runner=runner, declared_by=declared_by, updated_at=now)
        self._tables.waking.runners.put(agent_id, kept)

    def drop_runner(self, agent_id: int) -> bool:
        """Have an agent run no more; False when it was not."""
        known = agent_id in self._tables.waking.runners
        self._tables.waking.runners.drop(agent_id)
        return known

    def put_handling(self, handling: Handling) -> None:
        """Store or replace what a run makes of a letter."""
        key = handling.message_id, handling.agent_id
        if self._tables.letters.one("copy", key) is None:
            raise StoreError("the store refused: the agent is no recipient", value=list(key))
        self._tables.waking.handlings.put(key, handling)

    def begin_sitting(self, run_id: str, agent_id: int, now: int) -> None:
        """Record that a run of an agent is at work; begun anew, it has asked nothing."""
        if agent_id not in self._tables.agents:
            raise StoreError("the store refused: no such agent", value=agent_id)
        self._tables.waking.sittings.put(run_id, Sitting(agent_id=agent_id))

    def ask(self, run_id: str, agent_id: int, question: AskedQuestion, now: int) -> bool:
        """Keep a question of a run at work; False when the agent has no such run at work."""
        sitting = self._tables.waking.sittings.get(run_id)
        if sitting is None or sitting.agent_id != agent_id:
            return False
        if question.id not in {one.id for _, one in sitting.asked}:
            asked = tuple(sorted((*sitting.asked, (now, question)), key=lambda one: (one[0], one[1].id)))
            self._tables.waking.sittings.put(run_id, Sitting(agent_id=agent_id, asked=asked))
        return True

    def end_sitting(self, run_id: str) -> list[AskedQuestion]:
        """Record that a run is not at work any more and return what it asked, in the order of asking."""
        sitting = self._tables.waking.sittings.get(run_id)
        self._tables.waking.sittings.drop(run_id)
        return [] if sitting is None else [question for _, question in sitting.asked]

    def note_answer(self, message_id: int, run_id: str) -> None:
        """Record that a letter tells the end of a run; the first record stands."""
        if message_id not in self._tables.messages:
            raise StoreError("the store refused: there is no such message", value=message_id)
        if self._tables.waking.run_answers.get(message_id) is None:
            self._tables.waking.run_answers.put(message_id, run_id)
