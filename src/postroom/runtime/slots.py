"""Registers the active runs, at most one per thread, and keeps their input until they read it."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from postroom.concurrency import Tasks
from postroom.contracts.agent_events import RunIdentity
from postroom.contracts.clock import Timer
from postroom.contracts.errors import InvalidRecord, StoreError, ThreadAlreadyRunning
from postroom.contracts.live import (
    LiveChannels,
    LiveCommandKind,
    LiveRunCommand,
    LiveRunTarget,
    LiveSubscription,
)
from postroom.contracts.messages import Message, refuse_broken_delta
from postroom.contracts.runs import TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.log import get_logger
from postroom.runtime.interrupting import Stop, TimeUp, limited


class ActiveRun:
    """One execution of a run, as other parts of the process see it.

    The object keeps the input for the execution until the execution reads it.

    The run accepts input while it is open. Input that the run has accepted but not used is stored when the
    run ends. The run can be cancelled even before it opens.
    """

    def __init__(self, identity: RunIdentity, *, reads_pending: bool, new_id: Callable[[], str]) -> None:
        self.identity = identity
        self.stop = Stop()
        self.ended = asyncio.Event()
        self._open_calls: frozenset[str] = frozenset()
        self._reads_pending = reads_pending
        self._new_id = new_id
        self._stirred = asyncio.Event()
        self._inbox: list[Message] = []
        self._decisions: dict[str, ToolCallResume] = {}
        self._woken = False
        self._open = False
        self._ending = False

    @property
    def ids(self) -> tuple[str | None, ...]:
        """The ids with which the run can be found."""
        return (self.identity.run_id, self.identity.thread_id, self.identity.dispatch_id)

    def open(self) -> None:
        """Start accepting input."""
        self._open = True

    def accept(self, messages: Sequence[Message]) -> bool:
        """Accept messages for the next step; return False if the run is closed or cannot append them.

        A message is ignored if a message with the same id is already waiting.
        """
        named = [message if message.id else message.with_id(self._new_id()) for message in messages]
        try:
            refuse_broken_delta(named)
        except InvalidRecord:
            return False
        if self._open:
            known_ids = {message.id for message in self._inbox}
            self._inbox.extend(message for message in named if message.id not in known_ids)
            self._stirred.set()
        return self._open

    def decide(self, decisions: Sequence[tuple[str, ToolCallResume]]) -> bool:
        """Accept decisions; return False if the run or one of the tool calls is not open."""
        if not self._open or any(call not in self._open_calls for call, _ in decisions):
            return False
        for call, decision in decisions:
            self._decisions.setdefault(call, decision)
        self._stirred.set()
        return True

    def expect(self, ids: Iterable[str]) -> None:
        """Accept only decisions about the calls or tickets `ids` from now on; drop all other decisions."""
        self._open_calls = frozenset(ids)
        self._decisions = {id: resume for id, resume in self._decisions.items() if id in self._open_calls}

    def wake(self) -> bool:
        """Accept the notification that messages are pending.

        Return False if the run is not open, or ignores such notifications.
        """
        if not (self._open and self._reads_pending):
            return False
        self._woken = True
        self._stirred.set()
        return True

    def cancel(self) -> bool:
        """Ask the run to stop; return False if it is already ending."""
        if self._ending:
            return False
        self.stop.request(TerminationReason.cancelled())
        self._stirred.set()
        return True

    def take_messages(self) -> list[Message]:
        """Return the received messages, and clear the notification of pending messages.

        The caller must then read the pending messages, too.
        """
        taken, self._inbox = self._inbox, []
        self._woken = False
        return taken

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put unused messages back, in front of newer ones."""
        self._inbox[:0] = messages

    def take_decisions(self) -> dict[str, ToolCallResume]:
        """Return and remove the decisions that the run has received and not used yet."""
        taken, self._decisions = self._decisions, {}
        return taken

    def close(self) -> bool:
        """Stop accepting input; if there is unused input, stay open instead and return False."""
        if self.stop.requested or self._inbox or self._decisions or self._woken:
            return False
        self._open, self._ending = False, True
        return True

    def shut(self) -> list[Message]:
        """Stop accepting input, and return the unused messages."""
        self._open, self._ending = False, True
        return self.take_messages()

    async def stir(self, timer: Timer, within_ms: int | None = None) -> None:
        """Wait until input arrives or the time limit is reached; wait without a limit if it is None."""
        self._stirred.clear()
        if self.stop.requested or self._inbox or self._decisions or self._woken:
            return
        try:
            await limited(self._stirred.wait, within_ms, timer)
        except TimeUp:
            return


class ActiveRuns:
    """The runs that this runtime is executing."""

    def __init__(self) -> None:
        self._by_thread: dict[str, ActiveRun] = {}

    def __len__(self) -> int:
        return len(self._by_thread)

    def enter(self, active: ActiveRun) -> None:
        """Register a run that starts.

        Raises:
            ThreadAlreadyRunning: Another run is executing on the thread.
        """
        thread_id = active.identity.thread_id
        if thread_id in self._by_thread:
            raise ThreadAlreadyRunning(f"thread {thread_id!r} is already running", value=thread_id)
        self._by_thread[thread_id] = active

    def leave(self, active: ActiveRun) -> None:
        """Remove a run that has ended."""
        del self._by_thread[active.identity.thread_id]
        active.ended.set()

    def on_thread(self, thread_id: str) -> ActiveRun | None:
        """Return the run that is executing on the thread."""
        return self._by_thread.get(thread_id)

    def find(self, id: str) -> ActiveRun | None:
        """Return the run with this run, thread or dispatch id, or None if no run or two runs have it."""
        active_runs = [active for active in self._by_thread.values() if id in active.ids]
        return active_runs[0] if len(active_runs) == 1 else None


_LOG = get_logger(__name__)


class Listener:
    """Receives commands for one run.

    Without a listener, or if it fails, senders store their commands instead.
    """

    def __init__(self, channels: LiveChannels | None, active: ActiveRun) -> None:
        self._channels = channels
        self._active = active
        self._subscription: LiveSubscription | None = None
        self._task = Tasks("live commands")

    async def start(self) -> None:
        """Start listening."""
        if self._channels is None:
            return
        identity = self._active.identity
        target = LiveRunTarget(
            thread_id=identity.thread_id, run_id=identity.run_id, dispatch_id=identity.dispatch_id
        )
        try:
            self._subscription = await self._channels.open(target)
        except StoreError as error:
            _LOG.warning("runtime.not_listening", run_id=identity.run_id, code=error.code)
            return
        self._task.start(self._listen(self._subscription), name=identity.run_id)

    async def stop(self) -> None:
        """Stop listening; input that was not accepted is dropped."""
        if self._subscription is not None:
            self._subscription.close()
        await self._task.close()

    async def _listen(self, subscription: LiveSubscription) -> None:
        async for entry in subscription:
            with entry:
                if _apply(self._active, entry.command):
                    entry.receipt.ack()


def _apply(active: ActiveRun, command: LiveRunCommand) -> bool:
    match command.kind:
        case LiveCommandKind.MESSAGES:
            return active.accept(command.messages)
        case LiveCommandKind.PENDING_BOUNDARY_WAKE:
            return active.wake()
        case LiveCommandKind.CANCEL:
            return command.gives_way or active.cancel()  # a run that must give way is stopped by the mailbox
        case LiveCommandKind.DECISION:
            return active.decide(command.decisions)
