"""Hands input to the run that is at work, here or on another machine.

With the pending zone the input is stored first and the run is told to look; without, it is sent as it is.
"""

from dataclasses import dataclass

from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import AlreadyConsumed
from postroom.contracts.live import LiveCommandKind, LiveRunCommand, LiveRunTarget
from postroom.contracts.messages import Boundary, DeliveryMode, Message
from postroom.dispatch.control import Control
from postroom.dispatch.core import Core
from postroom.dispatch.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredRun:
    """The run that took the input, and its dispatch (the run's id where that is not known)."""

    dispatch_id: str
    run_id: str


class Steering:
    """Input for runs at work."""

    def __init__(self, core: Core, control: Control, workers: Workers) -> None:
        self._core = core
        self._control = control
        self._workers = workers

    async def steered(self, request: RunActivation, expected_run_id: str | None) -> SteeredRun | None:
        """Hand the messages to the thread's run at work; None when it does not take them, or is another."""
        worker = self._workers.get(request.thread_id)
        if worker is not None and worker.is_running:
            run_id, dispatch_id, is_here = worker.run_id or "", worker.dispatch_id, True
        else:
            target = await self._control.active_target(request.thread_id)
            if target is None or target.run_id is None:
                return None
            run_id, dispatch_id, is_here = target.run_id, target.dispatch_id, False
        if expected_run_id is not None and expected_run_id != run_id:
            return None
        if not await self._handed_over(request, run_id, dispatch_id, is_here=is_here):
            return None
        return SteeredRun(dispatch_id=dispatch_id or run_id, run_id=run_id)

    async def wake(self, thread_id: str) -> None:
        """Tell the thread's run at work, here or elsewhere, that messages wait for its next step."""
        worker = self._workers.get(thread_id)
        if worker is not None and worker.is_running:
            self._core.executor.wake_pending_boundary(worker.run_id or "")
            return
        target = await self._control.active_target(thread_id)
        if target is not None:
            wake = LiveRunCommand(kind=LiveCommandKind.PENDING_BOUNDARY_WAKE)
            await self._control.deliver(target, wake)

    async def _handed_over(
        self, request: RunActivation, run_id: str, dispatch_id: str | None, *, is_here: bool
    ) -> bool:
        if not self._core.config.pending_zone:
            if is_here:
                return self._core.executor.send_messages(run_id, request.messages)
            command = LiveRunCommand(kind=LiveCommandKind.MESSAGES, messages=request.messages)
            return await self._told(request.thread_id, run_id, dispatch_id, command)
        mode = DeliveryMode(boundary=Boundary.NEXT_STEP, target_run_id=run_id)
        await self._core.threads.append_pending(request.thread_id, request.messages, mode)
        if is_here:
            woken = self._core.executor.wake_pending_boundary(run_id)
        else:
            command = LiveRunCommand(kind=LiveCommandKind.PENDING_BOUNDARY_WAKE)
            woken = await self._told(request.thread_id, run_id, dispatch_id, command)
        return woken or not await self._retracted(request.thread_id, request.messages)

    async def _told(
        self, thread_id: str, run_id: str, dispatch_id: str | None, command: LiveRunCommand
    ) -> bool:
        target = LiveRunTarget(thread_id=thread_id, run_id=run_id, dispatch_id=dispatch_id)
        return await self._control.deliver(target, command)

    async def _retracted(self, thread_id: str, messages: tuple[Message, ...]) -> bool:
        """Take staged messages back; False when a run has read them meanwhile, so that they are delivered."""
        for message in messages:
            try:
                await self._core.threads.retract_pending(thread_id, message.id or "")
            except AlreadyConsumed:
                return False  # they are read together, in one step
        return True
