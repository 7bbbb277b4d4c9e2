"""What the mailbox, mail and chats ask of one another, and what an execution receives beside its request."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

from postroom.contracts.accepting import Accept
from postroom.contracts.activation import RunActivation
from postroom.contracts.budgets import Spending
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.files import RunFiles
from postroom.contracts.mail import AddressedAgent, Attachment
from postroom.contracts.messages import Boundary, Message, PendingMessage
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.people import ChatAddress, ChatWords
from postroom.contracts.registry import RegistrySet
from postroom.contracts.run_stores import CommitCoordinator
from postroom.contracts.runs import RunRecord, Usage
from postroom.contracts.tools import ToolCallResume
from postroom.stores.outbox import OutboxTables
from postroom.stores.runs.ports import ThreadStore
from postroom.stores.transaction import Transaction

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

    async def drain(
        self, grace: timedelta | None = None, *, waits_for: Callable[[str], bool] | None = None
    ) -> None:
        """Claim no more runs, give active runs the grace time to end, then stop and queue them again.

        `waits_for` says for the id of a thread whether its run gets the grace time; without it, each run gets
        it.
        """
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


class RunEffects:
    """Decides what the start and the end of a run cause: nothing, unless a subclass says otherwise."""

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> object | None:
        """Write the rows that belong to the start of a new run, in the change that claims it.

        `messages` are the first that the run reads. The executor of the run gets the result as
        `RunControl.beginning`. After None, the executor writes such rows itself.
        """
        return None

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Write what belongs to the end of a run that is done, or waits, in the change that stores the end.

        It is called behind the commit of the run, under the lock of its thread, and may be called again for
        the same run: what is written already is left as it is. `accept` puts messages on other threads;
        without it, those are to be found later.

        Raises:
            ThreadsNeeded: those threads are to be locked first; the change is run again.
        """

    def put_back(self, tx: Transaction, row: RunDispatch) -> None:
        """Write what belongs to an execution that has failed, in the change that has its run tried again.

        The run has not ended: it begins again when its dispatch, as it is now, is due.
        """

    def withdraw(self, tx: Transaction, run: RunRecord) -> None:
        """Write that nobody can answer a run's questions any more, in the change that ends it while it waits.

        It is called behind `write`, with the run as it waited.
        """

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the effects outside the database of a run that is done, or waits, as it stands now.

        Called in the change that stores the end; it may look, and writes nothing. The same for the same run:
        after a crash it is asked again. Each effect has a dedupe key, by which it is stored once.
        """
        return ()

    def stored(self, run: RunRecord) -> None:
        """Take note that the effects of a run are stored. A hint: it is lost when the process dies."""


class PendingBoundary(Protocol):
    """Lets a run read what waits for it."""

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Return what the run would read at this boundary, in order; it waits on."""
        ...

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        """Commit what the run reads at this boundary and return it, in order.

        With `group` nothing else, with `only` nothing but the messages with these ids.

        Raises:
            StaleClaim: the run is not the worker's any more.
        """
        ...

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Put messages that came live among those that wait, for this run; known ids are passed over."""
        ...


async def _stored() -> None:
    """Do nothing: no text is kept back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """What an execution is given beside its request; it lives in this process alone."""

    coordinator: CommitCoordinator
    threads: ThreadStore
    pending: PendingBoundary | None = None
    run: RunRecord | None = None
    """The run as it was claimed for this execution."""
    registry: RegistrySet | None = None
    """The registry that the run is pinned to; None means the live one."""
    hidden_runs: frozenset[str] = frozenset()
    hidden_message_ids: frozenset[str] = frozenset()
    store_output: Callable[[], Awaitable[None]] = _stored
    """Stores the text that the run has streamed so far: an event that is stored next comes after it."""
    give_up_on: tuple[type[Exception], ...] = ()
    """Exceptions after which neither the run nor a step of it is retried."""
    spends: Callable[[Usage], tuple[Spending, ...]] = lambda _: ()
    """Returns what a commit adds to budgets for what a step of the run has used."""
    beginning: object | None = None
    """The result of `RunEffects.begin` for this execution; None if it wrote nothing."""
    agent: AddressedAgent | None = None
    """The agent of the run, if it is one of mail: as it was when the run got its messages."""
    conversation: str | None = None
    """Which of the conversations that its thread holds the run belongs to, where it holds several."""
    only: frozenset[str] | None = None
    """With it the run sees these messages of its thread, and what it has said itself, and nothing else."""
    files: RunFiles | None = None
    """The files of its messages, and where those that it leaves are taken; None where there are none."""

    def shows(self, message: Message) -> bool:
        """Return whether the run sees a message of its thread: True unless the message was rolled back."""
        said_by = message.metadata.run_id if message.metadata else None
        return said_by not in self.hidden_runs and message.id not in self.hidden_message_ids


class ChatOutbox(Protocol):
    """Has mail messages delivered to chats."""

    def reaches(self, address: ChatAddress) -> bool:
        """Say whether there is a channel to this chat."""
        ...

    def enqueue(
        self,
        outbox: OutboxTables,
        key: str,
        address: ChatAddress,
        text: str,
        files: Sequence[Attachment] = (),
        *,
        keeps_quiet: bool,
    ) -> None:
        """Take a message for a chat, in an open change: it is delivered, or reported as lost.

        Its files follow it; the chat is told of one that cannot be sent there.

        Taken twice, it is delivered once; with `keeps_quiet` after the chat's quiet hours.

        Raises:
            IdempotencyConflict: another text was taken under its key.
        """
        ...


class ChatDelivery(Protocol):
    """Is told what became of messages in chats, and takes people's answers to them."""

    async def arrived(self, key: str) -> None:
        """Take note that the chat shows a message; harmless when it is said again.

        Raises:
            StoreError: it could not be noted.
        """
        ...

    async def lost(self, key: str, why: str) -> None:
        """Tell whoever wrote a message that the chat will not show it; said again, it changes nothing.

        Raises:
            StoreError: it could not be noted.
        """
        ...

    async def prefer(self, chats: Sequence[ChatAddress]) -> str:
        """Have what is written to the person who is reached in one of these chats come to the first of them.

        Return whom.

        Raises:
            UnknownAgent: nobody, or more than one person, is reached in these chats.
            StoreError: it could not be stored.
        """
        ...

    async def reply(self, chats: Sequence[ChatAddress], message: int, text: str, *, key: str) -> str:
        """Answer a message for the person who is reached in one of these chats, which are all theirs.

        Return whom; repeated under its key, it is answered once.

        Raises:
            UnknownMessage: nobody who is reached in these chats was written this message.
            PostroomError: the mail room refuses the answer.
        """
        ...

    async def pass_on(self, said: ChatWords) -> None:
        """Write to a person what was said in a chat, from whoever is reached there.

        A chat in which nobody is reached is named as a visitor; what is written to a visitor comes there.

        Raises:
            StoreError: it could not be stored; it is not known whether it was.
            PostroomError: the mail room refuses it.
        """
        ...
