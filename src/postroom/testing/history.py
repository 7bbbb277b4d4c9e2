"""Checks whether a history of executions keeps the promises of the queue."""

import asyncio
import functools
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from postroom.embedded.running import Function, Run

_NAMED = 12
"""Maximum number of runs that a finding names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution of a run by one owner.

    `began` and `ended` are integers in any unit; all times of a history must come from the same clock. For an
    active execution, `ended` is the time of the last recorded event.
    """

    run_id: str
    thread_id: str
    owner: str
    began: int
    ended: int
    attempt: int = 1
    epoch: int = 0

    def __str__(self) -> str:
        return f"run {self.run_id} by {self.owner} (attempt {self.attempt}, {self.began} to {self.ended})"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The executions of a queue's runs, with the accepted runs and the ids of the ended runs."""

    executions: Sequence[Execution] = ()
    accepted: Mapping[str, str] | None = None
    """The thread of each accepted run, or None if accepted runs were not recorded."""
    ended: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path | str, *, accepted: Mapping[str, str] | None = None) -> "History":
        """Read a history from the file of an `ExecutionLog`.

        Raises:
            OSError: The file does not exist.
            ValueError: A line was not written by an `ExecutionLog`.
        """
        spans: dict[str, dict[str, Any]] = {}
        ended: set[str] = set()
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                document = json.loads(line)
                span = spans.setdefault(document["execution"], document | {"began": document["at"]})
                span["at"] = document["at"]
                if document["what"] == "end":
                    ended.add(document["run"])
        executions = [
            Execution(
                run_id=span["run"],
                thread_id=span["thread"],
                owner=span["owner"],
                attempt=span["attempt"],
                began=span["began"],
                ended=span["at"],
            )
            for span in spans.values()
        ]
        return cls(executions=executions, accepted=accepted, ended=frozenset(ended))

    def findings(self, *, at_once: int | None = None) -> list[str]:
        """Return a sentence for each promise of the queue that the history breaks.

        The promises are:

        - Executions of a thread do not overlap.
        - The epochs of a thread and the attempts of a run do not decrease.
        - A run stays on one thread.
        - Executed runs were accepted, and accepted runs have ended.

        `at_once` is the maximum number of runs that may be active at the same time.
        """
        in_order = sorted(self.executions, key=lambda one: (one.began, one.ended))
        found, by_thread = list[str](), defaultdict[str, list[Execution]](list)
        for execution in in_order:
            by_thread[execution.thread_id].append(execution)
        for thread_id, of_thread in by_thread.items():
            longest = of_thread[0]
            for execution in of_thread[1:]:
                if execution.began < longest.ended:
                    found.append(f"thread {thread_id} had two owners at once: {longest}, and {execution}")
                longest = max(longest, execution, key=lambda each: each.ended)
        for thread_id, of_thread in by_thread.items():
            attempts: dict[str, int] = {}
            for before, execution in itertools.pairwise([of_thread[0], *of_thread]):
                if execution.epoch < before.epoch:
                    found.append(
                        f"run {execution.run_id} of thread {thread_id} started in epoch {execution.epoch}, "
                        f"after run {before.run_id} in epoch {before.epoch}"
                    )
                # After a wait, attempts are counted from 1 again.
                if 1 < execution.attempt < attempts.get(execution.run_id, 0):
                    found.append(
                        f"run {execution.run_id} of thread {thread_id} started attempt {execution.attempt} "
                        f"after attempt {attempts[execution.run_id]}"
                    )
                attempts[execution.run_id] = execution.attempt
        threads: dict[str, str] = {}
        for execution in in_order:
            run_id, thread_id = execution.run_id, execution.thread_id
            if (first := threads.setdefault(run_id, thread_id)) != thread_id:
                found.append(f"run {run_id} was executed on thread {first}, and on thread {thread_id}")
        if self.accepted is not None:
            found += [
                f"run {run_id} of thread {self.accepted[run_id]} was accepted but has not ended"
                for run_id in sorted(set(self.accepted) - self.ended)
            ]
            strangers = {
                one.run_id: one.thread_id for one in self.executions if one.run_id not in self.accepted
            }
            found += [
                f"run {run_id} of thread {thread_id} was executed but never accepted"
                for run_id, thread_id in sorted(strangers.items())
            ]
        busiest = sorted(_busiest(in_order), key=lambda one: (one.began, one.thread_id, one.run_id))
        if at_once is not None and len(busiest) > at_once:
            at = max(execution.began for execution in busiest)
            named = ", ".join(f"{one.run_id} of thread {one.thread_id}" for one in busiest[:_NAMED])
            more = f" and {len(busiest) - _NAMED} more" if len(busiest) > _NAMED else ""
            limit = f"but the limit is {at_once}: at {at}"
            found.append(f"{len(busiest)} runs were executed at once, {limit} {named}{more}")
        return found

    @property
    def most_at_once(self) -> int:
        """The maximum number of executions at the same time."""
        return len(_busiest(self.executions))


def _busiest(executions: Iterable[Execution]) -> list[Execution]:
    now: dict[int, Execution] = {}
    most: list[Execution] = []
    steps = [
        step
        for execution in executions
        for step in (
            (execution.began, 1, id(execution), execution),
            (max(execution.ended, execution.began + 1), 0, id(execution), execution),
        )
    ]
    for _, begins, name, execution in sorted(steps, key=lambda step: step[:3]):
        if not begins:
            del now[name]
            continue
        now[name] = execution
        if len(now) > len(most):
            most = list(now.values())
    return most


@dataclass(slots=True)
class ExecutionLog:
    """A file in which workers record their executions.

    Any number of processes may share the file. A killed process leaves only complete lines. The end of an
    execution that is stopped from outside is not recorded.
    """

    path: Path
    owner: str = field(default_factory=lambda: f"process {os.getpid()}")
    _file: int = field(init=False)
    _open: dict[int, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def observed(self, work: Function) -> Function:
        """Return a function that calls `work` and records the start and the end of each execution."""

        @functools.wraps(work)
        async def written(run: Run) -> object:
            self._open[id(run)] = uuid4().hex
            try:
                await self._write("begin", run)
                answer = await work(run)
                await self._write("end", run)
                return answer
            finally:
                del self._open[id(run)]

        return written

    async def step(self, run: Run) -> None:
        """Record that an execution is still active; only observed work may call this method."""
        await self._write("step", run)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    async def _write(self, what: str, run: Run) -> None:
        fields = {
            "what": what,
            "execution": self._open[id(run)],
            "run": run.id,
            "thread": run.thread_id,
            "attempt": run.attempt,
            "owner": self.owner,
            "at": time.monotonic_ns(),
        }
        await asyncio.to_thread(os.write, self._file, f"{json.dumps(fields)}\n".encode())
