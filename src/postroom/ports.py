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
    """Hooks that write rows when a run starts, waits or ends; the default hooks do nothing."""

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> object | None:
        """Write the rows for the start of a run, in the transaction that claims the run.

        `messages` are the first messages that the run reads. The executor gets the result as
        `RunControl.beginning`. If the result is None, the executor must write the rows.
        """
        return None

    def receive(
        self, tx: Transaction, thread_id: str, run_id: str, messages: tuple[Message, ...], *, told: bool
    ) -> tuple[Message, ...]:
        """Write the rows for messages that an active run receives, in the transaction of their commit.

        Return the messages that the run reads. `told` states that the run's program has already received the
        messages.
        """
        return messages

    def why_not_wait(self, tx: Transaction, run: RunRecord) -> str | None:
        """Return the reason to cancel a run that wants to wait for a person, or None if the run may wait.

        The hook is called under the lock of the run's thread, before the run's rows are written.
        """
        return None

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Write the rows for a run that has ended or waits, in the transaction that stores this state.

        The hook is called under the lock of the run's thread, after the run's rows were written. A repeated
        call must leave existing rows unchanged. `accept` delivers messages to other threads. If `accept` is
        None, messages to other threads must be found later.

        Raises:
            ThreadsNeeded: Other threads must be locked first; the change is then made again.
        """

    def put_back(self, tx: Transaction, row: RunDispatch, *, is_stop: bool) -> None:
        """Write the rows for a failed execution, in the transaction that requeues the run.

        With `is_stop`, the execution did not fail, but its server is stopping.
        """

    def withdraw(self, tx: Transaction, run: RunRecord, *, has_begun: bool) -> None:
        """Record, in the transaction that ends a run's wait, that nobody can answer its questions.

        The hook is called after `write`, with the run in its former state. `has_begun` states that the
        execution that continues the run has started.
        """

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the effects outside the database of a run that has ended or waits.

        The hook must not write. Because the hook is called again after a crash, its result for a run must
        never change. Each effect has a dedupe key, under which the effect is stored only once.
        """
        return ()

    def stored(self, run: RunRecord) -> None:
        """React to the commit of a run's effects; the call is lost if the process dies."""


class PendingBoundary(Protocol):
    """Gives a run access to its pending messages."""

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Return the messages that the run would read at a boundary, in order; the messages stay pending."""
        ...

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        """Commit the pending messages that the run reads at a boundary, and return the messages.

        With `group`, only messages of this group are read. With `only`, only messages with these ids are
        read.

        Raises:
            StaleClaim: The worker no longer owns the run.
        """
        ...

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Add messages that arrived live to the pending messages of the run; known ids are ignored."""
        ...


async def _do_nothing() -> None:
    """Do nothing, because no text is buffered."""


async def _ends() -> bool:
    """Return False, because the run cannot ask people."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """The objects and facts that the executor of a run gets in addition to the request."""

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
    continues: Callable[[], Awaitable[bool]] = _ends
    """Returns whether the run continues after its turn, because it has asked a person in this execution, or
    because the answer to another of its questions has arrived in this execution.
    """
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
        """Return whether the run sees a message of its thread; rolled-back messages are hidden."""
        said_by = message.metadata.run_id if message.metadata else None
        return said_by not in self.hidden_runs and message.id not in self.hidden_message_ids


def get_claim(activation: RunActivation) -> Claim | None:
    """Return the claim of an execution, or None if no mailbox started the execution."""
    return activation.control.claim if isinstance(activation.control, RunControl) else None


class ChatOutbox(Protocol):
    """Delivers mail messages to chats."""

    def reaches(self, address: ChatAddress) -> bool:
        """Return whether messages can be delivered to a chat."""
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
        """Accept a message for a chat within an open transaction; a second call with a key has no effect.

        The message is later delivered or reported as lost. The files are sent after the text. If a file
        cannot be sent, the chat gets a notice. With `keeps_quiet`, the delivery waits for the end of the
        chat's quiet hours.

        Raises:
            IdempotencyConflict: The key was already used for a different text.
        """
        ...


class ChatDelivery(Protocol):
    """Records the delivery of mail to chats, and accepts the answers that people write in chats."""

    async def arrived(self, key: str) -> None:
        """Record that the chat shows a message; a second call has no effect.

        Raises:
            StoreError: The record could not be stored.
        """
        ...

    async def lost(self, key: str, why: str) -> None:
        """Tell the author of a message that the chat will not show it; a second call has no effect.

        Raises:
            StoreError: The record could not be stored.
        """
        ...

    async def prefer(self, chats: Sequence[ChatAddress]) -> str:
        """Make the first of a person's chats the address for messages, and return the name of the person.

        `chats` contains all chats of the person.

        Raises:
            UnknownAgent: These chats belong to no person, or to more than one.
            StoreError: The change could not be stored.
        """
        ...

    async def reply(self, chats: Sequence[ChatAddress], message: int, text: str, *, key: str) -> str:
        """Answer a message on behalf of the person with the given chats, and return the recipients.

        If the answer does not answer an open question, the reason follows the recipients. `chats` must
        contain all chats of the person. A second call with the same key does not answer twice.

        Raises:
            UnknownMessage: The person with these chats did not receive this message.
            PostroomError: The mail service rejects the answer.
        """
        ...

    async def catch_up(self, project: str, after: Mapping[str, int]) -> tuple[str, str, int]:
        """Return a project's slug, a summary of its events, and the cursor for the next summary.

        If `project` is "", the only project is used. `after` contains the cursors of earlier calls, keyed by
        slug.
        Without a valid cursor, the summary covers 24 hours.

        Raises:
            UnknownProject: The project does not exist, or none is named although there are several.
            StoreError: The log could not be read.
        """
        ...

    async def pass_on(self, said: ChatWords) -> None:
        """Send text from a chat as mail to `said.person`; the sender is the person with this chat address.

        If no person has the chat address, a visitor with the address is created.

        Raises:
            StoreError: The message was not stored, or it is unknown whether it was.
            PostroomError: The mail service rejects the message.
        """
        ...
