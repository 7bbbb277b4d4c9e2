"""Runners, and what they made of letters, over tables in memory."""

from collections.abc import Sequence
from itertools import islice
from typing import get_args

from postroom.contracts.errors import StoreError
from postroom.contracts.waking import AskedQuestion, Handling, KeptRunner, RunnerSource
from postroom.stores.memory.project_log import MemoryLogWrites
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

    def working_on(self, agent_ids: Sequence[int], project_id: int, thread_id: str) -> set[int]:
        """Return which of these agents have a run at work that has a letter of this thread in its hands."""
        tables, found = self._tables, set[int]()
        for letter in tables.messages.where("thread", (project_id, thread_id)):
            for row in tables.waking.handlings.where("message", letter.id):
                sitting = tables.waking.sittings.get(row.run_id)
                if sitting is not None and sitting.agent_id == row.agent_id:
                    found.add(row.agent_id)
        return found.intersection(agent_ids)

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


class MemoryWakingWrites(MemoryWakingReads, MemoryLogWrites):
    """Changes of the tables, undone when the transaction is."""

    def put_runner(self, agent_id: int, runner: str, *, declared_by: RunnerSource, now: int) -> None:
        """Say, or say anew, how an agent is run."""
        if agent_id not in self._tables.agents or declared_by not in get_args(RunnerSource):
            raise StoreError("the store refused: no such agent, or no such source", value=agent_id)
        kept = KeptRunner(agent_id=agent_id, runner=runner, declared_by=declared_by, updated_at=now)
        self._tables.waking.runners.put(agent_id, kept)
        self._tell_of_agent("agent.runner_set", agent_id, now)

    def drop_runner(self, agent_id: int, *, now: int) -> bool:
        """Have an agent run no more; False when it was not."""
        known = agent_id in self._tables.waking.runners
        self._tables.waking.runners.drop(agent_id)
        if known:
            self._tell_of_agent("agent.runner_dropped", agent_id, now)
        return known

    def put_handling(self, handling: Handling) -> None:
        """Store or replace what a run makes of a letter."""
        key = handling.message_id, handling.agent_id
        letter = self._tables.letters.one("copy", key)
        if letter is None:
            raise StoreError("the store refused: the agent is no recipient", value=list(key))
        self._tables.waking.handlings.put(key, handling)
        self._tell_handling(handling, letter.kind)

    def begin_sitting(self, run_id: str, agent_id: int, now: int, *, answered: Sequence[str] = ()) -> None:
        """Record that a run of an agent is at work; begun anew, it has asked nothing."""
        if agent_id not in self._tables.agents:
            raise StoreError("the store refused: no such agent", value=agent_id)
        former = self._tables.waking.sittings.get(run_id)
        if former is not None:
            self._tell_cut_off(run_id, former.agent_id, now)
        self._tables.waking.sittings.put(run_id, Sitting(agent_id=agent_id))
        self._tell_begun(run_id, agent_id, now, answered)

    def ask(self, run_id: str, agent_id: int, question: AskedQuestion, now: int) -> bool:
        """Keep a question of a run at work; False when the agent has no such run at work."""
        sitting = self._tables.waking.sittings.get(run_id)
        if sitting is None or sitting.agent_id != agent_id:
            return False
        if question.id not in {one.id for _, one in sitting.asked}:
            asked = tuple(sorted((*sitting.asked, (now, question)), key=lambda one: (one[0], one[1].id)))
            self._tables.waking.sittings.put(run_id, Sitting(agent_id=agent_id, asked=asked))
            self._tell_run("pause.asked", run_id, agent_id, now, question.id)
        return True

    def end_sitting(
        self, run_id: str, *, now: int, failed: bool = False, waits_for: Sequence[str] | None = None
    ) -> list[AskedQuestion]:
        """Record that a run is not at work any more and return what it asked, in the order of asking.

        `waits_for` is given where the run itself keeps questions: those of them that are new, for the log.
        """
        sitting = self._tables.waking.sittings.get(run_id)
        self._tables.waking.sittings.drop(run_id)
        if sitting is None:
            return []
        self._tell_ended(run_id, sitting.agent_id, now, waits_for, asks=bool(sitting.asked), failed=failed)
        return [question for _, question in sitting.asked]

    def note_answer(self, message_id: int, run_id: str) -> None:
        """Record that a letter tells the end of a run; the first record stands."""
        if message_id not in self._tables.messages:
            raise StoreError("the store refused: there is no such message", value=message_id)
        if self._tables.waking.run_answers.get(message_id) is None:
            self._tables.waking.run_answers.put(message_id, run_id)
