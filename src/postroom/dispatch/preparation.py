"""Writes the run first: its record and its messages, before any dispatch refers to it.

Look, decide, write with a comparison; when somebody wrote in between, the same again.
"""

from dataclasses import dataclass, replace

from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import OPEN, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import InternalError, RunNotOpen, VersionConflict
from postroom.contracts.run_stores import ClaimRequest, Committed, Delivery, SubmissionFacts
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.dispatch.attempt import Begun
from postroom.dispatch.config import COMMIT_ATTEMPTS
from postroom.dispatch.core import Core
from postroom.dispatch.journal import Journal
from postroom.dispatch.pinning import Pinning
from postroom.dispatch.planning import Plan, build_dispatch, existing_run, plan_submission
from postroom.dispatch.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryWish:
    """How the dispatch is to be queued together with its run; see `Delivery`."""

    interrupt: bool = False
    claim: bool = False
    claim_needed: bool = False
    when_idle: bool = False
    queue_cap: int | None = None
    begins: bool = False
    """Whether a new run begins with the claim that is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request as it was accepted, and what was written for it."""

    activation: RunActivation
    run: RunRecord
    committed: Committed
    queued_at: int
    joined: RunDispatch | None = None
    begun: Begun | None = None
    """Its execution, where that began with it."""

    @property
    def run_id(self) -> str:
        """The run that fulfils it."""
        return self.run.run_id

    @property
    def dispatch_id(self) -> str:
        """The dispatch that delivers it."""
        return self.run.dispatch_id or ""


class Preparation:
    """Turns a request into a stored run."""

    def __init__(self, core: Core, journal: Journal, pinning: Pinning, workers: Workers) -> None:
        self._core = core
        self._journal = journal
        self._pinning = pinning
        self._workers = workers

    async def prepare(self, request: RunActivation, wish: DeliveryWish | None = None) -> Prepared:
        """Store the run and its messages and, with a wish, its dispatch in the same transaction.

        Raises:
            UnknownRun, ForeignThread, RunNotOpen, DeliveryBlocked: the request does not fit the thread.
            ResolveFailed: the agent cannot be put together.
            ActiveRunConflict, QueueFull, DedupeKeyInUse: the wish cannot be fulfilled.
            InternalError: others wrote in between again and again.
        """
        async with self._core.threads_being_read.holding(request.thread_id):
            for _ in range(COMMIT_ATTEMPTS):
                plan = await self._plan(request)
                try:
                    return await self._write(plan, wish)
                except VersionConflict:
                    continue
        raise InternalError(
            f"a submission to thread {request.thread_id!r} has exhausted its {COMMIT_ATTEMPTS} attempts",
            remedy="submit again",
        )

    async def facts(self, thread_id: str, run_id: str | None = None) -> SubmissionFacts:
        """Return what a submission to the thread would be decided on."""
        return await self._core.threads.submission_facts(thread_id, run_id)

    async def _plan(self, request: RunActivation) -> Plan:
        facts = await self.facts(request.thread_id, request.run_id)
        existing = existing_run(request, facts)
        row = await self._open_dispatch(existing)
        joins = row if row is not None and row.status is RunDispatchStatus.QUEUED else None
        if row is not None and joins is None:
            if request.run_id is not None:
                raise RunNotOpen(f"run {row.run_id!r} is being delivered already", value=row.dispatch_id)
            existing = None  # another message resumes it at this moment: this one is for the next run
        run_id = existing.run_id if existing else request.run_id or self._core.new_id()
        if existing is not None and existing.resolution_id is not None:
            resolution_id = existing.resolution_id
        else:
            resolution_id = await self._pinning.pin(request, run_id=run_id)
        dispatch_id = joins.dispatch_id if joins else request.hints.dispatch_id or self._core.new_id()
        return plan_submission(
            request,
            facts,
            run_id=run_id,
            dispatch_id=dispatch_id,
            resolution_id=resolution_id,
            existing=existing,
            joins=joins,
            config=self._core.config,
            now=self._core.now(),
        )

    async def _open_dispatch(self, run: RunRecord | None) -> RunDispatch | None:
        if run is None or run.dispatch_id is None:
            return None
        row = await self._core.dispatches.load_dispatch(run.dispatch_id)
        return row if row is not None and row.run_id == run.run_id and row.status in OPEN else None

    async def _write(self, plan: Plan, wish: DeliveryWish | None) -> Prepared:
        begun = self._begun(plan, wish)
        commit, run, first_seq = plan.commit, plan.run, plan.first_seq
        if begun is not None:
            run = begun.run
            commit = replace(commit, run=run, begins=begun.instance_id)
        in_commit = self._journal.shares(self._core.stores.coordinator.storage_identity)
        if wish is not None and plan.joins is None:
            delivery = self._delivery(self._dispatch(plan.activation, plan.queued_at), wish)
            commit = replace(commit, delivery=delivery)
        if in_commit:
            drafts = self._journal.of_messages(
                run.thread_id,
                run.run_id,
                plan.messages,
                first_seq=first_seq,
                last_seq=first_seq + len(plan.messages) - 1,
            )
            commit = replace(commit, events=drafts)
        committed = await self._core.observed("commit", self._core.stores.coordinator.commit(commit))
        if committed.dispatch is not None:
            self._core.metrics.happened("enqueue")
        if committed.claimed is not None:
            self._core.metrics.happened("claim")
        if not in_commit:
            await self._journal.messages_committed(
                run.thread_id, run.run_id, plan.messages, first_seq=first_seq
            )
        self._workers.remember(run, plan.messages)
        return Prepared(
            activation=plan.activation,
            run=run,
            committed=committed,
            queued_at=plan.queued_at,
            joined=plan.joins,
            begun=begun,
        )

    def _begun(self, plan: Plan, wish: DeliveryWish | None) -> Begun | None:
        """Return the execution that is to begin in the same commit; None where it begins later."""
        run, activation = plan.run, plan.activation
        is_new = run.status is RunStatus.CREATED and plan.joins is None
        if wish is None or not wish.begins or not is_new or activation.committed_message_ids:
            return None
        instance_id = self._core.new_id()
        run = run.begun(run.dispatch_id or "", instance_id, now=self._core.now())
        return Begun(run=run, messages=plan.messages, instance_id=instance_id)

    def dispatch_of(self, prepared: Prepared) -> RunDispatch:
        """Return the dispatch of a prepared request, to be enqueued."""
        return self._dispatch(prepared.activation, prepared.queued_at)

    def _dispatch(self, activation: RunActivation, queued_at: int) -> RunDispatch:
        return build_dispatch(
            activation,
            config=self._core.config,
            new_id=self._core.new_id(),
            now=self._core.now(),
            queued_at=queued_at,
        )

    def _delivery(self, dispatch: RunDispatch, wish: DeliveryWish) -> Delivery:
        claim = ClaimRequest(consumer=self._core.consumer_id, lease_ms=self._core.config.lease_ms)
        return Delivery(
            dispatch=dispatch,
            interrupt=wish.interrupt,
            claim=claim if wish.claim else None,
            claim_needed=wish.claim_needed,
            when_idle=wish.when_idle,
            queue_cap=wish.queue_cap,
        )
