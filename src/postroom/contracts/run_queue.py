"""What other rooms ask of the mailbox, and what they write with a run's beginning and end."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

from postroom.contracts.accepting import Accept
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.messages import Message, PendingMessage
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.runs import RunRecord
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.transactions import Transaction

T = TypeVar("T")


class Submitted(Protocol):
    """A run that was started, or queued."""

    @property
    def run_id(self) -> str:
        """The run."""
        ...

    @property
    def dispatch_id(self) -> str:
        """Its dispatch."""
        ...


class RunQueue(Protocol):
    """A durable queue of runs by thread; `Mailbox` is one. Its docstrings are the promises."""

    async def accepting(
        self, thread_ids: Collection[str], change: Callable[[Transaction, Accept], T], *, key: str = ""
    ) -> T:
        """Run a change that may have runs of these threads read messages: all of it is stored, or nothing."""
        ...

    async def submit_background(self, request: RunActivation) -> Submitted:
        """Accept work to be done in its turn."""
        ...

    async def pending(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return what no run has read yet, in order."""
        ...

    async def edit_pending(self, thread_id: str, message: Message) -> PendingMessage:
        """Replace a message that no run has read yet."""
        ...

    async def retract_pending(self, thread_id: str, message_id: str) -> PendingMessage:
        """Take back a message that no run has read yet."""
        ...

    async def list_dispatches(
        self,
        thread_id: str,
        statuses: Sequence[RunDispatchStatus] | None = None,
        *,
        limit: int = 100,
    ) -> tuple[RunDispatch, ...]:
        """Return a thread's dispatches."""
        ...

    async def cancel(self, id: str) -> bool:
        """Cancel what has this dispatch, run or thread id."""
        ...

    async def discard_dead_letter(self, dispatch_id: str) -> RunDispatch:
        """Remove a dead letter for good.

        Raises:
            UnknownDispatch, IllegalTransition: there is no such dead letter.
        """
        ...

    async def drain(self, grace: timedelta | None = None) -> None:
        """Claim nothing more, let runs end within the grace time, and give the others back uncounted."""
        ...

    async def send_decision_live(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Hand a decision to a run at work; False when none takes it."""
        ...

    async def take_back_decision(self, thread_id: str, run_id: str, decision_id: str) -> bool:
        """Take back a decision that its run has not begun to read; False if the run has it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """How busy a thread is: the run at work, and how many messages wait."""

    active: RunDispatch | None
    waiting: int


class RunEffects(Protocol):
    """Decides what a run's beginning and its end cause."""

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> bool:
        """Write what belongs to the beginning of a new run, in the change that claims it.

        `messages` are what it reads first. Return whether the thread's runs have such a beginning; what
        executes a run that has begun otherwise writes it itself (`RunControl.is_noted`).
        """
        ...

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Write what belongs to the end of a run that is done, or waits, in the change that stores the end.

        It is called behind the commit of the run, under the lock of its thread, and may be called again for
        the same run: what is written already is left as it is. `accept` puts messages on other threads;
        without it, those are to be found later.

        Raises:
            ThreadsNeeded: those threads are to be locked first; the change is run again.
        """
        ...

    def put_back(self, tx: Transaction, row: RunDispatch) -> None:
        """Write what belongs to an execution that has failed, in the change that has its run tried again.

        The run has not ended: it begins again when its dispatch, as it is now, is due.
        """
        ...

    def withdraw(self, tx: Transaction, run: RunRecord) -> None:
        """Write that nobody can answer a run's questions any more, in the change that ends it while it waits.

        It is called behind `write`, with the run as it waited.
        """
        ...

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the effects outside the database of a run that is done, or waits, as it stands now.

        Called in the change that stores the end; it may look, and writes nothing. The same for the same run:
        after a crash it is asked again. Each effect has a dedupe key, by which it is stored once.
        """
        ...

    def stored(self, run: RunRecord) -> None:
        """Take note that the effects of a run are stored. A hint: it is lost when the process dies."""
        ...
