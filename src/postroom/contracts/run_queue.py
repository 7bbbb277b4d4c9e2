"""What other rooms ask of the mailbox; they never see more of it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

from postroom.contracts.accepting import Accept
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.messages import Message, PendingMessage
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

    async def drain(self, grace: timedelta | None = None) -> None:
        """Claim nothing more, let runs end within the grace time, and give the others back uncounted."""
        ...

    async def send_decision_live(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Hand a decision to a run at work; False when none takes it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """How busy a thread is: the run at work, and how many messages wait."""

    active: RunDispatch | None
    waiting: int
