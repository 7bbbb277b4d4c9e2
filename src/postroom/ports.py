"""The interfaces between the mailbox, mail and chats, and the context of an execution."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import Claim, RunDispatch
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


class RunEffects:
    """Hooks that write rows when a run starts, waits or ends; by default, a hook does nothing."""

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> object | None:
        """Write the rows for the start of a new run, in the change that claims the run.

        `messages` are the first messages that the run reads. The executor of the run gets the result as
        `RunControl.beginning`; if the result is None, the executor writes such rows itself.
        """
        return None

    def receive(
        self, tx: Transaction, thread_id: str, run_id: str, messages: tuple[Message, ...], *, told: bool
    ) -> tuple[Message, ...]:
        """Write the rows for messages that an active run receives, in the change that commits the messages.

        Return the messages that the run reads. `told` means that the run's program has already received them.
        """
        return messages

    def why_not_wait(self, tx: Transaction, run: RunRecord) -> str | None:
        """Return why a run that wants to wait for a person is cancelled instead, or None if it may wait.

        The hook is called before the run's rows are written, under the lock of its thread.
        """
        return None

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Write the rows for a run that has ended or waits, in the change that stores this state.

        The hook is called after the run's rows were written, under the lock of its thread. The hook may be
        called again for the same run, and must then leave existing rows unchanged. `accept` delivers messages
        to other threads; if it is None, such messages must be found later.

        Raises:
            ThreadsNeeded: Other threads must be locked first; the change is then made again.
        """

    def put_back(self, tx: Transaction, row: RunDispatch, *, is_stop: bool) -> None:
        """Write the rows for a failed execution, in the change that makes its run due for a retry.

        With `is_stop`, the execution did not fail, but its server is stopping.

        The run has not ended; it starts again when its dispatch is due.
        """

    def withdraw(self, tx: Transaction, run: RunRecord) -> None:
        """Record that a run's questions can no longer be answered, in the change that ends its wait.

        The hook is called after `write`, with the run in its former state.
        """

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the effects outside the database of a run that has ended or waits.

        The hook is called in the change that stores the end; it may read, but must not write. For the same
        run it must always return the same result, because it is called again after a crash. Each effect has a
        dedupe key, under which it is stored only once.
        """
        return ()

    def stored(self, run: RunRecord) -> None:
        """React to the storage of a run's effects; this call is lost if the process dies."""


class PendingBoundary(Protocol):
    """Gives a run access to its pending messages."""

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Return the messages that the run would read at this boundary, in order; they stay pending."""
        ...

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        """Commit the pending messages that the run reads at this point of its execution, and return them.

        `group` selects only messages of that group. `only` selects only messages with these ids, which the
        program has already received.

        Raises:
            StaleClaim: The worker no longer owns the run.
        """
        ...

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Add messages that arrived live to the pending messages of this run; known ids are ignored."""
        ...


async def _do_nothing() -> None:
    """Do nothing, because no text is buffered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """The context of an execution in addition to its request, which exists only in this process."""

    coordinator: CommitCoordinator
    threads: ThreadStore
    pending: PendingBoundary | None = None
    run: RunRecord | None = None
    """The run as it was claimed for this execution."""
    claim: Claim | None = None
    """The proof of ownership that the writes of this execution present."""
    registry: RegistrySet | None = None
    """The registry to which the run is pinned, or None for the live configuration."""
    hidden_runs: frozenset[str] = frozenset()
    hidden_message_ids: frozenset[str] = frozenset()
    store_output: Callable[[], Awaitable[None]] = _do_nothing
    """Stores the text that the run has streamed so far, so that the next stored event follows it."""
    give_up_on: tuple[type[Exception], ...] = ()
    """Exceptions after which neither the run nor its steps are retried."""
    spends: Callable[[Usage], tuple[Spending, ...]] = lambda _: ()
    """Returns the amounts that a commit must add to budgets for the usage of a step."""
    beginning: object | None = None
    """The result of `RunEffects.begin` for this execution, or None if it wrote nothing."""
    agent: AddressedAgent | None = None
    """The agent of the run at the time when the run got its messages, or None if it is not a mail agent."""
    conversation: str | None = None
    """The conversation of the run, if its thread has several."""
    only: frozenset[str] | None = None
    """If set, the run sees only its own messages and these messages of its thread."""
    files: RunFiles | None = None
    """The files of the run's messages, to which the run can add files, or None without file support."""

    def shows(self, message: Message) -> bool:
        """Return whether the run sees a message of its thread: False for example after a rollback."""
        said_by = message.metadata.run_id if message.metadata else None
        return said_by not in self.hidden_runs and message.id not in self.hidden_message_ids


def get_claim(activation: RunActivation) -> Claim | None:
    """Return the claim that the writes of an execution present, or None if no mailbox started it."""
    return activation.control.claim if isinstance(activation.control, RunControl) else None


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
        """Accept a message for a chat within an open change.

        Later, the message is either delivered or reported as lost.

        The files of a message are sent after it. If a file cannot be sent there, the chat gets a notice.

        A repeated call does not deliver the message twice. With `keeps_quiet`, the delivery waits for the end
        of the chat's quiet hours.

        Raises:
            IdempotencyConflict: The key was already used for a different text.
        """
        ...


class ChatDelivery(Protocol):
    """Records whether chats show the messages that agents sent to people, and the answers of these people."""

    async def arrived(self, key: str) -> None:
        """Record that the chat shows a message; a repeated call has no effect.

        Raises:
            StoreError: The record could not be stored.
        """
        ...

    async def lost(self, key: str, why: str) -> None:
        """Tell the author of a message that it will not appear in the chat; a repeated call has no effect.

        Raises:
            StoreError: The record could not be stored.
        """
        ...

    async def prefer(self, chats: Sequence[ChatAddress]) -> str:
        """Deliver messages for the person who has the chats `chats` to the first of them from now on.

        Return the name of the person.

        Raises:
            UnknownAgent: These chats belong to no person, or to more than one.
            StoreError: The change could not be stored.
        """
        ...

    async def reply(self, chats: Sequence[ChatAddress], message: int, text: str, *, key: str) -> str:
        """Answer a message on behalf of the person who has the chats `chats`; return the name of the person.

        `chats` must be all chats of the person. A repeated call with the same key does not answer twice.

        Raises:
            UnknownMessage: The person with these chats did not receive this message.
            PostroomError: The mail service rejects the answer.
        """
        ...

    async def catch_up(self, project: str, after: Mapping[str, int]) -> tuple[str, str, int]:
        """Return a project's slug, a summary of its events, and the cursor for the next summary.

        If `project` is empty, the only project is used. `after` contains the last cursors, keyed by slug;
        without a valid cursor, the summary covers 24 hours.

        Raises:
            UnknownProject: The project does not exist, or none is named although there are several.
            StoreError: The log could not be read.
        """
        ...

    async def pass_on(self, said: ChatWords) -> None:
        """Send text from a chat to `said.person`; the sender is the person whose address the chat is.

        If the chat is not the address of a person, a visitor is created as the sender. Messages to the
        visitor are delivered to the chat.

        Raises:
            StoreError: The message was not stored, or it is unknown whether it was.
            PostroomError: The mail service rejects the message.
        """
        ...
