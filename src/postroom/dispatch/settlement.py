"""Writes how a run ended, when its executor has not done so itself."""

from dataclasses import replace

from postroom.contracts.agent_events import RunFinish
from postroom.contracts.budgets import Spending
from postroom.contracts.dispatch import RunDispatch, RunDispatchResult
from postroom.contracts.errors import (
    IllegalTransition,
    InternalError,
    PostroomError,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.messages import Message, MessageMetadata, storable
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.dispatch.attempt import Attempt
from postroom.dispatch.config import COMMIT_ATTEMPTS
from postroom.dispatch.core import Core


async def settle_run(
    core: Core, attempt: Attempt, result: AgentRunResult, spends: tuple[Spending, ...] = ()
) -> RunRecord | None:
    """Bring the run to the end that the result tells, and return it as it is stored then.

    An executor that commits its own steps has done so; for one that does not, its answer becomes the
    thread's next message in the same step. Events that still wait are written either way. Where the queue is
    kept in the same place, the dispatch is acked with it. None when the thread was removed meanwhile.

    Raises:
        StaleClaim: the run is not the worker's any more; nothing was written.
    """
    dispatch, coordinator = attempt.dispatch, attempt.coordinator
    commits = core.executor.commits_steps(dispatch.thread_id)
    known = None if commits else coordinator.run
    for _ in range(COMMIT_ATTEMPTS):
        run = known or await core.threads.load_run(dispatch.run_id)
        known = None
        if run is None:
            return None
        commit = ThreadCommit(thread_id=dispatch.thread_id, spends=spends)
        if _is_left_open(run, dispatch):
            answer = () if commits else _answer(core, run, result)
            run = _ended(run, dispatch, result, answer, now=core.now())
            commit = replace(commit, run=run, messages=answer)
        commit = replace(commit, outbox=core.effects_of(run))
        try:
            async with core.threads_being_read.holding(dispatch.thread_id):
                if core.one_transaction:
                    ends = result_of(dispatch, run, result, attempt.instance_id)
                    committed = await core.observed("ack", coordinator.commit(replace(commit, ends=ends)))
                    attempt.leaves_waiting = committed.leaves_waiting
                elif commit.run or spends or commit.outbox or coordinator.has_waiting_events:
                    await coordinator.commit(commit)
        except (IllegalTransition, VersionConflict):
            continue
        except UnknownThread:
            return None
        core.effects_stored(run)
        return run
    raise InternalError(f"the end of run {dispatch.run_id!r} has exhausted its attempts to be written")


def result_of(
    dispatch: RunDispatch, run: RunRecord | None, result: AgentRunResult, instance_id: str
) -> RunDispatchResult:
    """Return a result as the queue records it."""
    termination = result.termination
    waits = result.waiting is not None or (run is not None and run.is_resumable_waiting)
    failed = termination.type is TerminationKind.ERROR
    return RunDispatchResult(
        run_id=dispatch.run_id,
        dispatch_instance_id=instance_id,
        status=RunStatus.WAITING if waits else termination.run_status,
        termination=termination,
        response=result.response or None,
        error=termination.value if failed else None,
    )


def _is_left_open(run: RunRecord, dispatch: RunDispatch) -> bool:
    """Say whether the run stands as it stood when the execution began."""
    if run.status is RunStatus.WAITING:
        return run.waiting is None or run.waiting.since_dispatch_id != dispatch.dispatch_id
    return run.is_open


def _answer(core: Core, run: RunRecord, result: AgentRunResult) -> tuple[Message, ...]:
    if not result.response:
        return ()
    said = Message.assistant(result.response, id=core.new_id())
    return (replace(said, metadata=MessageMetadata(run_id=run.run_id, step_index=run.steps)),)


def _ended(
    run: RunRecord,
    dispatch: RunDispatch,
    result: AgentRunResult,
    answer: tuple[Message, ...],
    *,
    now: int,
) -> RunRecord:
    told = replace(
        run,
        final_output=result.response or run.final_output,
        steps=max(run.steps, result.steps),
        usage=run.usage + result.usage,
        output_message_ids=(*run.output_message_ids, *(message.id or "" for message in answer)),
        dispatch_id=dispatch.dispatch_id,
    )
    waiting = result.waiting
    if waiting is None and result.termination.type is TerminationKind.SUSPENDED:
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT)
    if waiting is None:
        return told.ended(result.termination or TerminationReason.natural_end(), now=now)
    return replace(
        told,
        status=RunStatus.WAITING,
        waiting=replace(waiting, since_dispatch_id=dispatch.dispatch_id),
        updated_at=max(now, run.updated_at),
    )


def as_result(ended: AgentRunResult | BaseException, run_id: str) -> AgentRunResult:
    """Return the end of an execution that is consumed: a failure among them ends the run as it stands."""
    if isinstance(ended, AgentRunResult):
        return replace(ended, response=storable(ended.response))
    text = ended.describe() if isinstance(ended, PostroomError) else str(ended)
    return AgentRunResult(run_id=run_id, termination=TerminationReason.error(storable(text)))


def paused_by(run: RunRecord, pause: RunWaitingState) -> AgentRunResult:
    """Return the end of a run that a budget keeps from being executed."""
    return AgentRunResult(run_id=run.run_id, termination=TerminationReason.suspended(), waiting=pause)


def finish_event(dispatch: RunDispatch, termination: TerminationReason, response: str | None) -> RunFinish:
    """Return the last event of an execution."""
    result = None if response is None else {"response": response}
    return RunFinish(
        thread_id=dispatch.thread_id, run_id=dispatch.run_id, termination=termination, result=result
    )
