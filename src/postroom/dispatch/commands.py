"""Hands over what others ask of the runs at work here: to end, or to go on with a decision.

    asked anywhere ─▶ kept with the dispatch ─▶ heard here: a hint, or the poll ─▶ the executor is told
                                    └─▶ what it has not taken holds when the run is tried again, or waits

A command is kept until the execution has ended, so that none is lost with the process that has heard it.
"""

from collections.abc import Callable, Mapping

from postroom.contracts.errors import PostroomError
from postroom.contracts.live import LiveRunCommand
from postroom.dispatch.core import Core
from postroom.log import get_logger
from postroom.stores.changes import commands_to

_LOG = get_logger(__name__)


class Commands:
    """Looks what is asked of the runs at work in this process."""

    def __init__(
        self, core: Core, at_work: Callable[[], Mapping[str, bool]], cancel: Callable[[str], object]
    ) -> None:
        """Keep what it works with.

        `at_work` returns the dispatches that execute here, and whether they are cancelled; `cancel` ends one.
        """
        self._core = core
        self._at_work = at_work
        self._cancel = cancel
        self._taken: set[tuple[str, str]] = set()
        """The calls of dispatches at work whose decisions the executor has taken."""
        self.is_served = False
        """Whether it listens."""

    def serve(self) -> None:
        """Listen from now on, until the mailbox is closed; harmless when done twice."""
        if not self.is_served:
            self.is_served = True
            self._core.tasks.start(self._serve(), name="commands")

    async def _serve(self) -> None:
        core = self._core
        with core.store.changes.listen(commands_to(core.consumer_id)) as told:
            while True:
                await told.wait(core.config.poll_interval)
                try:
                    await self._look()
                except PostroomError as error:
                    _LOG.warning("commands.not_read", reason=error.describe())

    async def _look(self) -> None:
        at_work = self._at_work()
        if not at_work:
            self._taken.clear()
            return
        self._taken = {one for one in self._taken if one[0] in at_work}
        found = await self._core.store.read(lambda tx: tx.runs.dispatches.commands(tuple(at_work)))
        for dispatch_id, command in found:
            if not (command.cancels and at_work[dispatch_id]):
                self._hand_over(dispatch_id, command)

    def _hand_over(self, dispatch_id: str, command: LiveRunCommand) -> None:
        """Tell the executor, once; a decision that it does not take it is asked about again later."""
        decide = self._core.executor.send_decision
        try:
            if command.cancels:
                self._cancel(dispatch_id)
            for call_id, resume in command.decisions:
                call = dispatch_id, call_id
                if call not in self._taken and decide(dispatch_id, call_id, resume):
                    self._taken.add(call)
        except Exception:  # an executor is anybody's code; the others are told
            _LOG.exception("run.not_told", dispatch_id=dispatch_id, command=command.kind.value)
