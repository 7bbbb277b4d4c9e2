"""Runs an executor so that nothing it does reaches the mailbox but its result or its failure."""

import asyncio
from collections.abc import Awaitable, Callable

from postroom.concurrency import Tasks
from postroom.contracts.clock import Timer
from postroom.contracts.errors import ExecutorFailed, ExecutorMisbehaved
from postroom.contracts.executor import AgentRunResult
from postroom.dispatch.lease import Lease

Ended = AgentRunResult | BaseException


async def contained(run: Callable[[], Awaitable[AgentRunResult]]) -> Ended:
    """Await an executor and return its result, or whatever it raised; only our own cancellation passes."""
    try:
        result: object = await run()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return ExecutorFailed("the executor cancelled itself")
    except GeneratorExit:
        raise
    except BaseException as error:
        return error
    if not isinstance(result, AgentRunResult):
        return ExecutorMisbehaved(f"the executor returned a {type(result).__name__} and no result")
    return result


async def executed(
    tasks: Tasks, run: Callable[[], Awaitable[AgentRunResult]], lease: Lease, *, name: str
) -> "asyncio.Task[Ended]":
    """Run an executor until it ends or the lease does; return its task, ended or not."""
    body = tasks.start(contained(run), name=name)
    watch = tasks.start(lease.ended(), name=f"watch of {name}")
    try:
        await asyncio.wait((body, watch), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        body.cancel()
        raise
    finally:
        watch.cancel()
    return body


async def stopped(body: "asyncio.Task[Ended]", timer: Timer, tasks: Tasks, *, within_ms: int) -> bool:
    """Cancel an execution and wait for its end; False when it ignores that and is left behind."""
    body.cancel()
    alarm = tasks.start(timer.sleep(within_ms), name="stop of an execution")
    try:
        await asyncio.wait((body, alarm), return_when=asyncio.FIRST_COMPLETED)
    finally:
        alarm.cancel()
    return body.done()
