"""The runs of a server: one mailbox for all of them, with an executor for each kind of thread."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta

from prometheus_client import CollectorRegistry

from postroom.concurrency import SystemTimer
from postroom.contracts.clock import Timer, iso
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.limits import Budget
from postroom.contracts.messages import Json
from postroom.contracts.run_stores import MAX_PAGE, RunQuery
from postroom.contracts.runs import AGENT_THREAD, RunRecord, RunStatus, agent_of
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.metrics import MailboxMetrics
from postroom.dispatch.routing import ExecutorsByThread, JoinedEffects
from postroom.dispatch.sinks import OutputKept
from postroom.gateway.config import DEFAULT_AGENT
from postroom.gateway.replies import agent_on, build_outbox_target, is_chat
from postroom.leases import Leases
from postroom.ports import RunEffects
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import Transaction

OPEN_STATUSES = (RunStatus.CREATED, RunStatus.RUNNING, RunStatus.WAITING)
SLOTS = 256
STOP_WAIT_MS = 15_000
"""The time limit for stopping active runs, in milliseconds.

A program that is asked to exit gets a third of this time before it is killed.
"""


class RunService:
    """The queue of all runs of a server.

    Components register executors for threads, and effects for ended runs.
    """

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        stores: RunStores,
        *,
        registry: CollectorRegistry,
        is_exclusive: bool,
        timer: Timer | None = None,
        budgets: Sequence[Budget] = (),
        max_pending: int = 10_000,
        leases: Leases | None = None,
        claims_hold: Callable[[int], None] | None = None,
    ) -> None:
        """Create the queue.

        `is_exclusive` is true if no other process executes runs of the database. `leases` knows the places of
        the process, and which processes have exited. `claims_hold` is called with the milliseconds for which
        the process certainly owns its runs. `max_pending` is the maximum number of waiting messages per
        thread.
        """
        self.stores = stores
        self.budgets = tuple(budgets)
        self.slots = SLOTS
        """The number of runs that may be active in this process at the same time."""
        timer = timer or SystemTimer()
        self._executors = ExecutorsByThread({})
        self._effects = JoinedEffects()
        self.mailbox = Mailbox(
            OutputKept(self._executors, stores.events, timer),
            stores,
            consumer_id=None if leases is None else leases.holder,
            effects=self._effects,
            timer=timer,
            config=MailboxConfig(
                drain_grace=timedelta(0),
                stop_wait_ms=STOP_WAIT_MS,
                cancel_wait_ms=STOP_WAIT_MS,
                is_exclusive=is_exclusive,
                places=None if leases is None else leases.places,
                gone=None if leases is None else lambda: leases.gone,
                claims_hold=claims_hold,
                budgets=self.budgets,
                max_concurrent_runs=self.slots,
                max_pending_per_thread=max_pending,
            ),
            metrics=MailboxMetrics(registry),
        )

    def serve(self, threads: str, executor: RunDispatchExecutor, effects: RunEffects) -> None:
        """Register the executor for threads with a prefix, before `start` is called."""
        self._executors.add(threads, executor)
        self._effects.add(effects)

    async def start(self) -> None:
        """Recover unfinished runs, and start to execute work.

        A repeated call has no effect.

        Raises:
            StoreError: Unfinished runs could not be recovered.
        """
        if not self.mailbox.lifecycle_is_running():
            await self.mailbox.start_lifecycle_ready()

    async def counts(self) -> dict[RunDispatchStatus, int]:
        """Return the number of dispatches in each state.

        Raises:
            StoreError: The counts could not be read.
        """
        return await self.stores.dispatches.count_by_status()

    async def dead_letters(self) -> AsyncIterator[RunDispatch]:
        """Yield the dead letters, oldest first.

        Raises:
            StoreError: The dead letters could not be read.
        """
        after: RunDispatch | None = None
        while page := await self.mailbox.dead_letters(after=after):
            for dead_letter in page:
                yield dead_letter
            after = page[-1]

    async def untold_dead_letters(self) -> int:
        """Return the number of dead letters that only an operator can handle.

        Dead letters of chats are not counted, because the person in the chat already knows the reason.

        Raises:
            StoreError: The dead letters could not be counted.
        """
        if not (await self.counts()).get(RunDispatchStatus.DEAD_LETTER):
            return 0
        return sum([not is_chat(work.thread_id) async for work in self.dead_letters()])

    async def longest_waiting(self, now: int) -> RunDispatch | None:
        """Return the due dispatch that has waited longest, or None.

        Raises:
            StoreError: The queue could not be read.
        """
        longest: RunDispatch | None = None
        after: tuple[int, str] | None = None
        while page := await self.stores.dispatches.list_by_status(
            RunDispatchStatus.QUEUED, limit=MAX_PAGE, after=after
        ):
            for record in page:
                if longest is not None and record.updated_at >= longest.due_since:
                    return longest  # ordered by last change, so no later one has waited longer
                if record.available_at <= now and (longest is None or record.due_since < longest.due_since):
                    longest = record
            after = (page[-1].updated_at, page[-1].dispatch_id)
        return longest

    async def stop(self) -> None:
        """Queue active runs again, and stop.

        Do nothing before `start`.
        """
        await self.mailbox.aclose(timedelta(0))


def project_threads(slug: str) -> str:
    """Return the thread id prefix of a project's agents, or of all projects for ""."""
    return f"{AGENT_THREAD}{slug}/" if slug else AGENT_THREAD


def whose(thread_id: str) -> tuple[str, str]:
    """Return the project slug and agent name in a thread id.

    Slug and name are empty for a thread without an agent.
    """
    return agent_of(thread_id) or ("", "")


def owner_of(thread_id: str) -> tuple[str, str, str]:
    """Return the agent name, project slug and chat in a thread id.

    An agent has either a project or a chat. Missing parts are empty.
    """
    if is_chat(thread_id):
        return agent_on(thread_id) or DEFAULT_AGENT, "", build_outbox_target(thread_id)
    slug, name = whose(thread_id)
    return name, slug, ""


def retried(tx: Transaction) -> dict[str, Json]:
    """Return the number of runs that failed and are retried, and the newest error; {} for no such run.

    At most 500 queued runs are counted.
    """
    active = tx.runs.dispatches.by_status(RunDispatchStatus.CLAIMED, limit=MAX_PAGE, after=None)
    rows = [*tx.runs.dispatches.retried(MAX_PAGE), *(row for row in active if row.attempt_count)]
    if not rows:
        return {}
    newest = max(rows, key=lambda row: row.claimed_at or row.updated_at)
    agent, project, chat = owner_of(newest.thread_id)
    return {
        "runs": len(rows),
        "run_id": newest.run_id,
        "agent": f"{agent}@{project}" if project else f"{agent} in {chat}",
        "error": newest.last_error or "",
        "until": None if newest.status is RunDispatchStatus.CLAIMED else iso(newest.available_at),
    }


def open_runs(
    tx: Transaction, prefix: str, statuses: tuple[RunStatus, ...] = OPEN_STATUSES
) -> Iterator[RunRecord]:
    """Yield the open runs on threads with an id prefix, ordered by run id."""
    after = ""
    while True:
        query = RunQuery(statuses=statuses, after=after, thread_prefix=prefix)
        page = tx.runs.threads.list_runs(query, MAX_PAGE)
        yield from page
        if len(page) < MAX_PAGE:
            return
        after = page[-1].run_id


def dispatches_of(tx: Transaction, status: RunDispatchStatus, prefix: str) -> Iterator[RunDispatch]:
    """Yield the dispatches with a status on threads with an id prefix, ordered by last change."""
    after: tuple[int, str] | None = None
    while True:
        page = tx.runs.dispatches.by_status(status, limit=MAX_PAGE, after=after, thread_prefix=prefix)
        yield from page
        if len(page) < MAX_PAGE:
            return
        after = (page[-1].updated_at, page[-1].dispatch_id)
