"""The objects of one execution, which also accept input while the run executes."""

from collections.abc import Callable
from dataclasses import dataclass

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import PostroomError
from postroom.contracts.messages import Boundary
from postroom.log import get_logger
from postroom.ports import RunControl
from postroom.runtime.agents import ResolvedAgent
from postroom.runtime.background import BackgroundTasks
from postroom.runtime.calls import ToolCalls
from postroom.runtime.checkpoint import RunLog
from postroom.runtime.interrupting import TimeUp, limited
from postroom.runtime.slots import ActiveRun
from postroom.runtime.window import Windows

_LOG = get_logger(__name__)

LEAVING_MS = 1_000
"""Maximum time in milliseconds for storing the input of a failing run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The context of one execution of a run."""

    activation: RunActivation
    agent: ResolvedAgent
    active: ActiveRun
    control: RunControl
    log: RunLog
    calls: ToolCalls
    tasks: BackgroundTasks
    windows: Windows
    sink: EventSink
    clock: Clock
    timer: Timer
    hold_ms: int
    new_id: Callable[[], str]

    async def read(self, boundary: Boundary) -> bool:
        """Read the received and pending input at a step boundary; return whether there was any input.

        Raises:
            Interrupted: The run was asked to stop.
            StaleClaim: The worker has lost the run.
        """
        self.active.stop.check()
        sent = self.active.take_messages()
        try:
            before = len(self.log.messages)
            if self.control.pending is None:
                self.log.keep(sent)
            else:
                if sent:
                    await self.control.pending.stage(boundary, sent)
                self.log.extend(await self.control.pending.freeze(boundary))
            return len(self.log.messages) > before
        except BaseException:
            self.active.put_back(sent)
            raise

    async def put_down(self) -> None:
        """Stop accepting input, and store the unread input for a later run."""
        sent = self.active.shut()
        if self.control.pending is None:
            self.log.keep(sent)
        elif sent:
            try:
                await self.control.pending.stage(Boundary.NEXT_STEP, sent)
            except BaseException:
                self.active.put_back(sent)
                raise

    async def put_down_in_haste(self) -> None:
        """Store the unread input of a failing run; log an error if the input cannot be stored in time."""
        try:
            await limited(self._put_down_and_write, LEAVING_MS, self.timer)
        except (PostroomError, TimeUp) as error:
            _LOG.warning("runtime.messages_lost", run_id=self.log.run_id, reason=repr(error))

    async def _put_down_and_write(self) -> None:
        await self.put_down()
        if self.log.has_new_input:
            await self.log.write(lambda record: record)
