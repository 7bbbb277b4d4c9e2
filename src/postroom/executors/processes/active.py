"""Registers the active runs of this process, at most one per thread, and passes on requests to end."""

import asyncio
from enum import StrEnum

from postroom.contracts.agent_events import RunIdentity
from postroom.contracts.errors import ThreadAlreadyRunning
from postroom.contracts.messages import Boundary, storable
from postroom.ports import PendingBoundary


class StopReason(StrEnum):
    """The reason why the server stops a program."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    IDLE = "idle"
    FLOODED = "flooded"
    BROKEN = "broken"
    """The program's output could not be read."""
    DONE = "done"
    """The program's work is done, so it is no longer needed."""


class Stop:
    """A request to end a program; requests after `settle` have no effect."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._is_settled = False
        self._late: StopReason | None = None
        self.reason: StopReason | None = None

    @property
    def is_ending(self) -> bool:
        """Whether the program was asked to end, or ends without a request."""
        return self._is_settled or self.reason is not None

    def ask(self, reason: StopReason) -> bool:
        """Ask the program to end; return False if the program is already ending without a request."""
        if self._is_settled:
            self._late = self._late or reason
            return False
        if self.reason is None:
            self.reason = reason
            self._asked.set()
        return True

    def settle(self) -> None:
        """Refuse further requests, because the program ends without a request."""
        self._is_settled = True

    def open(self) -> None:
        """Accept requests again for the next program of a run.

        A refused request applies to the next program.
        """
        self._is_settled = False
        if self._late is not None:
            self.ask(self._late)

    async def asked(self) -> None:
        """Wait until the program is asked to end."""
        await self._asked.wait()


class ActiveRun:
    """An active run, with methods that stop or notify the run's program."""

    def __init__(self, identity: RunIdentity) -> None:
        self.identity = identity
        self.stop = Stop()
        self.ended = asyncio.Event()
        self.arrivals = asyncio.Event()
        """An event that is set when new messages for the run may exist."""
        self.listens = False
        """Whether the run's program accepts messages while it works."""
        self.pending: PendingBoundary | None = None
        """The pending messages that postroom's tools add to their answers, or None if the program receives
        messages in another way.
        """
        self.told: set[str] = set()
        """The ids of the messages that tools have added to their answers."""

    def answers_to(self, id: str) -> bool:
        """Return whether `id` is the run id, thread id or dispatch id of the run."""
        return id in (self.identity.run_id, self.identity.thread_id, self.identity.dispatch_id)

    def wake(self) -> bool:
        """Notify the run that messages are pending; return False if the program accepts no messages."""
        self.arrivals.set()
        return self.listens

    async def untold(self) -> str:
        """Return the texts of messages that have arrived for the run since the last call, or ""."""
        if self.pending is None:
            return ""
        new = [
            message
            for message in await self.pending.waiting(Boundary.NEXT_STEP)
            if message.id not in self.told
        ]
        self.told.update(message.id or "" for message in new)
        return "\n\n".join(text for message in new if (text := storable(message.text())).strip())

    def cancel(self) -> bool:
        """Ask the program to end; return False if the program already ends without a request."""
        return self.stop.ask(StopReason.CANCELLED)


class ActiveRuns:
    """The runs that this process executes."""

    def __init__(self) -> None:
        self._by_thread: dict[str, ActiveRun] = {}

    def __len__(self) -> int:
        return len(self._by_thread)

    def all(self) -> tuple[ActiveRun, ...]:
        """Return all active runs."""
        return tuple(self._by_thread.values())

    async def enter(self, active: ActiveRun) -> None:
        """Add a run to the active runs; wait if a run of the same thread is ending.

        Raises:
            ThreadAlreadyRunning: A run of the thread is active and was not asked to end.
        """
        thread_id = active.identity.thread_id
        while (former := self._by_thread.get(thread_id)) is not None:
            if not former.stop.is_ending:
                raise ThreadAlreadyRunning(f"thread {thread_id!r} is already running", value=thread_id)
            await former.ended.wait()
        self._by_thread[thread_id] = active

    def leave(self, active: ActiveRun) -> None:
        """Remove a run whose processes have ended, and wake all callers that wait for the run's end."""
        del self._by_thread[active.identity.thread_id]
        active.ended.set()

    def on_thread(self, thread_id: str) -> ActiveRun | None:
        """Return the active run on a thread, or None if no run is active."""
        return self._by_thread.get(thread_id)

    def find(self, id: str) -> ActiveRun | None:
        """Return the only active run with the given run, thread or dispatch id, or None."""
        active_runs = [active for active in self._by_thread.values() if active.answers_to(id)]
        return active_runs[0] if len(active_runs) == 1 else None
