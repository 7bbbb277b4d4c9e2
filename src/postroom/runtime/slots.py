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
    LiveRunTarget,
    LiveSubscription,
)
from postroom.contracts.messages import Message, refuse_broken_delta
from postroom.contracts.runs import TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.log import get_logger
from postroom.runtime.interrupting import Stop, TimeUp, limited


class ActiveRun:
    """An active run, and the input that other parts of the process send to the run.

    Accepted input that the run has not read is stored when the run ends.
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
        """The run id, thread id and dispatch id of the run."""
        return (self.identity.run_id, self.identity.thread_id, self.identity.dispatch_id)

    def open(self) -> None:
        """Start accepting input for the run."""
        self._open = True

    def accept(self, messages: Sequence[Message]) -> bool:
        """Accept messages for the run's next step; return False if the run is closed or cannot append them.

        A message with the id of a waiting message is ignored.
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
        """Accept decisions about open tool calls; return False if the run or one of the calls is not open."""
        if not self._open or any(call not in self._open_calls for call, _ in decisions):
            return False
        for call, decision in decisions:
            self._decisions.setdefault(call, decision)
        self._stirred.set()
        return True

    def expect(self, ids: Iterable[str]) -> None:
        """Set the ids of open calls and tickets; decisions about all other ids are dropped."""
        self._open_calls = frozenset(ids)
        self._decisions = {id: resume for id, resume in self._decisions.items() if id in self._open_calls}

    def wake(self) -> bool:
        """Notify the run that messages are pending; return False if the run ignores the notification."""
        if not (self._open and self._reads_pending):
            return False
        self._woken = True
        self._stirred.set()
        return True

    def cancel(self) -> bool:
        """Ask the run to stop; return False if the run is already ending."""
        if self._ending:
            return False
        self.stop.request(TerminationReason.cancelled())
        self._stirred.set()
        return True

    def take_messages(self) -> list[Message]:
        """Return and remove the received messages, and clear the notification of pending messages."""
        taken, self._inbox = self._inbox, []
        self._woken = False
        return taken

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put unused messages back into the input, before newer messages."""
        self._inbox[:0] = messages

    def take_decisions(self) -> dict[str, ToolCallResume]:
        """Return and remove the decisions that the run has received."""
        taken, self._decisions = self._decisions, {}
        return taken

    def close(self) -> bool:
        """Stop accepting input, or return False if there is unread input."""
        if self.stop.requested or self._inbox or self._decisions or self._woken:
            return False
        self._open, self._ending = False, True
        return True

    def shut(self) -> list[Message]:
        """Stop accepting input, and return the unread messages."""
        self._open, self._ending = False, True
        return self.take_messages()

    async def stir(self, timer: Timer, within_ms: int | None = None) -> None:
        """Wait until input arrives, for at most `within_ms` milliseconds; None means no limit."""
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
        """Register an active run.

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
        """Return the active run on a thread, or None if no run is active."""
        return self._by_thread.get(thread_id)

    def find(self, id: str) -> ActiveRun | None:
        """Return the only active run with the given run, thread or dispatch id, or None."""
        active_runs = [active for active in self._by_thread.values() if id in active.ids]
        return active_runs[0] if len(active_runs) == 1 else None


_LOG = get_logger(__name__)


class Listener:
    """Receives the commands of other processes for one active run."""

    def __init__(self, channels: LiveChannels | None, active: ActiveRun) -> None:
        self._channels = channels
        self._active = active
        self._subscription: LiveSubscription | None = None
        self._task = Tasks("live commands")

    async def start(self) -> None:
        """Start listening for commands."""
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
        subscription = self._subscription

        async def listen() -> None:
            async for entry in subscription:
                with entry:
                    command = entry.command
                    match command.kind:
                        case LiveCommandKind.MESSAGES:
                            is_taken = self._active.accept(command.messages)
                        case LiveCommandKind.PENDING_BOUNDARY_WAKE:
                            is_taken = self._active.wake()
                        case LiveCommandKind.CANCEL:
                            # a run that must give way is stopped by the mailbox
                            is_taken = command.gives_way or self._active.cancel()
                        case LiveCommandKind.DECISION:
                            is_taken = self._active.decide(command.decisions)
                    if is_taken:
                        entry.receipt.ack()

        self._task.start(listen(), name=identity.run_id)

    async def stop(self) -> None:
        """Stop listening for commands; commands that were not accepted are dropped."""
        if self._subscription is not None:
            self._subscription.close()
        await self._task.close()
