"""The interfaces between the mailbox, mail and chats, and the context of an execution."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.files import RunFiles
from postroom.contracts.limits import Spending
from postroom.contracts.mail import AddressedAgent, Attachment
from postroom.contracts.messages import Boundary, Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.people import ChatAddress, ChatWords
from postroom.contracts.registry import RegistrySet
from postroom.contracts.run_stores import CommitCoordinator
from postroom.contracts.runs import RunRecord, Usage
from postroom.contracts.waking import Accept
from postroom.stores.outbox import OutboxTables
from postroom.stores.runs.ports import ThreadStore
from postroom.stores.store import Transaction

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """The load of a thread: its active run, and the number of waiting messages."""

    active: RunDispatch | None
    waiting: int


class RunEffects:
    """The effects of the start and the end of a run: none, unless a subclass adds some."""

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> object | None:
        """Write the rows for the start of a new run, in the change that claims it.

        `messages` are the first that the run reads. The executor of the run gets the result as
        `RunControl.beginning`. After None, the executor writes such rows itself.
        """
        return None

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Write the rows for the end of a run that is done, or waits, in the change that stores the end.

        It is called after the commit of the run, under the lock of its thread. It may be called again for the
        same run, and must leave existing rows unchanged. `accept` puts messages on other threads; without it,
        they must be found later.

        Raises:
            ThreadsNeeded: Those threads must be locked first; the change is run again.
        """

    def put_back(self, tx: Transaction, row: RunDispatch) -> None:
        """Write the rows for a failed execution, in the change that makes its run due for a retry.

        The run has not ended: it starts again when its dispatch, in its present state, is due.
        """

    def withdraw(self, tx: Transaction, run: RunRecord) -> None:
        """Write that a run's questions can no longer be answered, in the change that ends its wait.

        It is called after `write`, with the run as it waited.
        """

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the effects outside the database of a run that is done, or waits, in its present state.

        Called in the change that stores the end; it may read, but writes nothing. The result for a run is
        always the same: after a crash it is called again. Each effect has a dedupe key, under which it is
        stored once.
        """
        return ()

    def stored(self, run: RunRecord) -> None:
        """Note that the effects of a run are stored. A hint: it is lost when the process dies."""


class PendingBoundary(Protocol):
    """Gives a run access to its waiting messages."""

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Return the messages that the run would read at this boundary, in order; they keep waiting."""
        ...

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        """Commit and return the messages that the run reads at this boundary, in order.

        With `group` only that group, with `only` only the messages with these ids.

        Raises:
            StaleClaim: The worker no longer owns the run.
        """
        ...

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Add live messages to the waiting ones, for this run; ignore known ids."""
        ...


async def _stored() -> None:
    """Do nothing: no text is buffered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """The context of an execution in addition to its request; it exists only in this process."""

    coordinator: CommitCoordinator
    threads: ThreadStore
    pending: PendingBoundary | None = None
    run: RunRecord | None = None
    """The run as it was claimed for this execution."""
    registry: RegistrySet | None = None
    """The registry that the run is pinned to; None means the live configuration."""
    hidden_runs: frozenset[str] = frozenset()
    hidden_message_ids: frozenset[str] = frozenset()
    store_output: Callable[[], Awaitable[None]] = _stored
    """Stores the text that the run has streamed so far: an event that is stored next comes after it."""
    give_up_on: tuple[type[Exception], ...] = ()
    """Exceptions after which neither the run nor a step of it is retried."""
    spends: Callable[[Usage], tuple[Spending, ...]] = lambda _: ()
    """Returns a commit's additions to budgets for the usage of a step of the run."""
    beginning: object | None = None
    """The result of `RunEffects.begin` for this execution; None if it wrote nothing."""
    agent: AddressedAgent | None = None
    """The agent of the run, if it is an agent of mail, in its state when the run got its messages."""
    conversation: str | None = None
    """The conversation of the run, if its thread has several."""
    only: frozenset[str] | None = None
    """If set, the run sees only these messages of its thread and its own."""
    files: RunFiles | None = None
    """The files of its messages, and the place for the files that it sends; None without files."""

    def shows(self, message: Message) -> bool:
        """Return whether the run sees a message of its thread: True unless the message was rolled back."""
        said_by = message.metadata.run_id if message.metadata else None
        return said_by not in self.hidden_runs and message.id not in self.hidden_message_ids


class ChatOutbox(Protocol):
    """Delivers mail messages to chats."""

    def reaches(self, address: ChatAddress) -> bool:
        """Return whether there is a channel to this chat."""
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
        """Accept a message for a chat, in an open change: it is delivered, or reported as lost.

        Its files follow it; the chat gets a notice about a file that cannot be sent there.

        A repeated call delivers it once; with `keeps_quiet` delivery waits for the end of the chat's quiet
        hours.

        Raises:
            IdempotencyConflict: Another text has this key.
        """
        ...


class ChatDelivery(Protocol):
    """Receives the results of messages in chats, and people's answers to them."""

    async def arrived(self, key: str) -> None:
        """Note that the chat shows a message; a repeated call has no effect.

        Raises:
            StoreError: The note could not be stored.
        """
        ...

    async def lost(self, key: str, why: str) -> None:
        """Tell the author of a message that the chat will not show it; a repeated call has no effect.

        Raises:
            StoreError: The note could not be stored.
        """
        ...

    async def prefer(self, chats: Sequence[ChatAddress]) -> str:
        """Deliver messages for the person of these chats to the first of them; return the person.

        Raises:
            UnknownAgent: These chats belong to no person, or to more than one.
            StoreError: The change could not be stored.
        """
        ...

    async def reply(self, chats: Sequence[ChatAddress], message: int, text: str, *, key: str) -> str:
        """Answer a message for the person of these chats, which are all theirs; return the person.

        A repeated call with the same key answers once.

        Raises:
            UnknownMessage: The person of these chats did not get this message.
            PostroomError: The mail room refuses the answer.
        """
        ...

    async def pass_on(self, said: ChatWords) -> None:
        """Send words from a chat to a person, as a message from the person of that chat.

        A chat without a person gets a visitor as its person; messages to the visitor are delivered there.

        Raises:
            StoreError: The message could not be stored, or its outcome is unknown.
            PostroomError: The mail room refuses the message.
        """
        ...
