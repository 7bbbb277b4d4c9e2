"""Wakes recipients. The change that stores a message also adds it to an agent's run or a person's chat.

send ─▶ one change: the message ─┬─▶ on the recipient's thread, where it starts a run or waits; announced
                                 └─▶ a row of the outbox, to the person's chat
round ─▶ messages that woke nobody yet: stored at a run's end, without a server, or before a runner existed
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    IdempotencyConflict,
    InvalidArgument,
    NotPermitted,
    PostroomError,
    QueueFull,
    StaleDecision,
)
from postroom.contracts.mail import Agent, Message, Project
from postroom.contracts.messages import Boundary, DeliveryMode
from postroom.contracts.messages import Message as RunMessage
from postroom.contracts.people import ChatAddress
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    RunMessageInput,
    RunRecord,
    RunStatus,
    RunWaitingState,
    WaitingReason,
    agent_of,
)
from postroom.contracts.tasks import TASK_THREAD, place_in_message
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import Accept, AskedQuestion, ThreadsNeeded
from postroom.dispatch.mailbox import Mailbox
from postroom.log import get_logger
from postroom.mail.outgoing import wake_key
from postroom.mail.projects import PEOPLE_SLUG, VISITOR, format_address
from postroom.mail.waking.open_questions import answers, given_by_reply, ticket_of, why_late
from postroom.mail.waking.prompts import (
    ASKED,
    Origin,
    agent_thread,
    as_answered,
    as_order,
    as_prompt,
    as_said,
    choose_lane,
    message_name,
)
from postroom.ports import ChatDelivery, ChatOutbox
from postroom.stores.changes import WAKES
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.stores.store import Transaction

T = TypeVar("T")
Reader = tuple[Project, Agent]

_LOG = get_logger(__name__)
POLL = timedelta(seconds=5)
AFTER_FAILURE = timedelta(seconds=1)
BY: Final = "runner"
MAX_AT_ONCE: Final = 32
"""Maximum number of threads of runs that the change which stores a message locks. Rounds wake further agents.

There is a limit, because other changes must wait in the meantime.
"""
MAX_REMEMBERED: Final = 4_096
"""Maximum number of sets of recipients for which the threads to lock are cached."""
_NONCE = 16
_BATCH = 100


@dataclass(slots=True, eq=False)
class OpenChange:
    """Wakes the recipients of messages in an open transaction: agents with a runner, people with a chat."""

    tx: Transaction
    accept: Accept
    chats: ChatOutbox | None
    verified: bool
    said: set[str] = field(default_factory=set)
    """The keys of the messages that this change has stored for chats."""
    refuses_full: bool = False
    """Whether a message is rejected if too many messages wait for a recipient.

    If False, the message is stored, and wakes the recipient later.
    """
    expected: frozenset[str] = frozenset()
    """The threads that the recipients of the change's messages need, and that the change has locked."""

    def ask(self, thread_id: str, agent: Agent, question: AskedQuestion) -> None:
        """Store a run that waits for the answer to a question that an agent asks outside a run.

        Raises:
            ThreadsNeeded: The change has not locked the thread.
        """
        if thread_id not in self.accept.thread_ids:
            raise ThreadsNeeded(frozenset({thread_id}))
        now, message = self.tx.now(), RunMessage.user(question.text, id=f"{ASKED}{question.id}")
        run = RunRecord(
            run_id=self.tx.new_id(),
            thread_id=thread_id,
            status=RunStatus.WAITING,
            resolution_id="live",  # as `MailRunExecutor.resolve`: a decision must not wait for it
            input=RunMessageInput(thread_id=thread_id, trigger_message_ids=(message.id or "",)),
            waiting=RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=(ticket_of(question, now),)),
            created_at=now,
            started_at=now,
            updated_at=now,
        )
        self.tx.runs.commit(ThreadCommit(thread_id=thread_id, run=run, messages=(message,)))
        self.tx.mail.ask_outside(run.run_id, agent.id, question.id, now)

    def arrived(self, run: RunRecord) -> set[str]:
        """Return the tool calls whose answers have arrived while a run is active, and wait for its next turn.

        Raises:
            ThreadsNeeded: The change has not locked the thread of the run.
        """
        if run.thread_id not in self.accept.thread_ids:
            raise ThreadsNeeded(frozenset({run.thread_id}))
        commands = self.tx.runs.dispatches.commands((run.dispatch_id or "",))
        return {call for _, command in commands for call, _ in command.decisions}

    def expect(
        self, readers: Sequence[Reader], *, thread_id: str | None, reply_to: int | None, sender_id: int
    ) -> None:
        """Check that a message can wake its recipients, before the message is written.

        `thread_id` is the mail thread, or None for a new thread. A reply that answers an open question is
        accepted even if the recipient's queue is full.

        Raises:
            ThreadsNeeded: The change must be repeated with these threads.
            QueueFull: A recipient has reached its limit of waiting messages, and `refuses_full` is true.
        """
        agents = [reader for reader in readers if not is_person(reader)]
        threads = {name for agent in agents for name in self.choose_threads(agent, thread_id, reply_to)}
        needed = frozenset(sorted(threads)[:MAX_AT_ONCE])
        self.expected |= needed
        if not needed <= self.accept.thread_ids:
            raise ThreadsNeeded(needed)
        if not self.refuses_full:
            return
        woken = [
            agent for agent in agents if needed.issuperset(self.choose_threads(agent, thread_id, reply_to))
        ]
        if full := [agent for agent in woken if not self.has_room(agent, thread_id, reply_to, sender_id)]:
            names = [reader[1].name for reader in full]
            raise QueueFull(
                f"nothing was sent: the queue of messages for {', '.join(names)} is full",
                value=names[0],
                remedy="send the message again after their runs have read some messages, or remove that "
                "recipient",
                details={"recipients": names},
            )

    def choose_threads(self, reader: Reader, thread_id: str | None, reply_to: int | None) -> list[str]:
        """Return the run threads to which a message for a recipient may be added."""
        threads, asking = lanes_of(reader, thread_id), self._asking(reader, reply_to)
        return threads if asking is None or asking.thread_id in threads else [*threads, asking.thread_id]

    def has_room(self, reader: Reader, thread_id: str | None, reply_to: int | None, sender_id: int) -> bool:
        """Return whether the recipient's queue can accept a message now.

        A full queue still accepts the answer to an open question.
        """
        threads = lanes_of(reader, thread_id)
        is_full = all(map(self.accept.is_full, threads))
        return not is_full or self._find_asking_run(reader, reply_to, sender_id) is not None

    def wake(
        self, message: Message, home: Project, sender: Agent, readers: Sequence[Reader], *, is_answer: bool
    ) -> None:
        """Wake the recipients of a message from the project `home`.

        A later round wakes recipients that cannot be woken now. `is_answer` is true if the message is the
        answer of a run.
        """
        for woken_reader in readers:
            origin = Origin(
                address=format_address(message.sender_name, home.slug, woken_reader[0].slug),
                program=sender.program,
                verified=self.verified,
                is_answer=is_answer,
            )
            if is_person(woken_reader):
                self._carry(message, origin, woken_reader[1])
            elif not self.accept.thread_ids.issuperset(lanes_of(woken_reader, message.thread_id)):
                self.tx.mail.wake_later()
            elif self.refuses_full or self.has_room(  # otherwise, `expect` has refused the message
                woken_reader, message.thread_id, message.reply_to, message.sender_id
            ):
                # otherwise, a round finds the message after others were read; an existing message does not
                # change
                asking, late = self._find_asking_run(woken_reader, message.reply_to, message.sender_id), ""
                answers_given: Sequence[tuple[str, ToolCallResume]] = ()
                if asking is not None:
                    try:
                        answers_given = given_by_reply(self.tx.mail, asking, message, self.tx.now())
                    except (NotPermitted, InvalidArgument, StaleDecision) as error:
                        asking, late = None, error.message  # the message waits, and its sender learns why
                elif message.reply_to is not None:
                    project, agent = woken_reader
                    late = why_late(self.tx.mail, message, project.slug, agent.name, is_for_sender=False)
                orders = (
                    self.tx.mail.tasks_claimed_in(place_in_message(message.id))
                    if message.thread_id.startswith(TASK_THREAD)
                    else ()
                )
                reader, nonce = woken_reader[1].name, self.tx.new_id()[:_NONCE]
                text = (
                    as_order(orders[0], message, origin, reader=reader, nonce=nonce)
                    if orders
                    else as_prompt(
                        message,
                        origin,
                        reader=reader,
                        nonce=nonce,
                        late=late,
                        answers_active_run=asking is not None and self._is_active(asking),
                    )
                )
                mode = DeliveryMode(
                    boundary=Boundary.NEXT_STEP,
                    group=message.thread_id,
                    starts_run=True,
                    resumes=False,
                    target_run_id=None if asking is None else asking.run_id,
                )
                self.tx.mail.mark_announced(woken_reader[1].id, [message.id], by=BY, now=self.tx.now())
                run_message = RunMessage.user(text, id=message_name(message.id))
                [thread_id] = (
                    lanes_of(woken_reader, message.thread_id) if asking is None else [asking.thread_id]
                )
                self.accept(thread_id, run_message, mode, answers_given)

    def _asking(self, reader: Reader, reply_to: int | None) -> RunRecord | None:
        run_id = None if reply_to is None else self.tx.mail.answering_run(reply_to)
        run = None if run_id is None else self.tx.runs.threads.load_run(run_id)
        whose = None if run is None else agent_of(run.thread_id)
        return run if whose == (reader[0].slug, reader[1].name) else None

    def _find_asking_run(self, reader: Reader, reply_to: int | None, sender_id: int) -> RunRecord | None:
        run = self._asking(reader, reply_to)
        if run is None or run.thread_id not in self.accept.thread_ids:
            return None
        return run if answers(self.tx.mail, run, reply_to=reply_to, sender_id=sender_id) else None

    def _is_active(self, run: RunRecord) -> bool:
        dispatch = None if run.dispatch_id is None else self.tx.runs.dispatches.load(run.dispatch_id)
        return dispatch is not None and dispatch.status is RunDispatchStatus.CLAIMED

    def _carry(self, message: Message, origin: Origin, person: Agent) -> None:
        address = self.tx.mail.chat_address(person.id)
        if address is None or self.chats is None or not self.chats.reaches(address):
            self.tx.mail.wake_later()
            return
        key = wake_key(message.id, person.id)
        is_visitor = person.program == VISITOR
        text = as_answered(message) if is_visitor else as_said(message, origin)
        files = self.tx.mail.attachments([message.id])[message.id]
        # A visitor has asked. As with an agent's answer, this answer does not wait for the end of quiet
        # hours.
        is_quiet = message.importance != "urgent" and not is_visitor
        self.chats.enqueue(self.tx.outbox, key, address, text, files, keeps_quiet=is_quiet)
        self.said.add(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """A stored message that has not woken a recipient yet."""

    message: Message
    home: Project
    sender: Agent
    reader: Reader
    chat: ChatAddress | None
    is_answer: bool

    @property
    def thread_ids(self) -> frozenset[str]:
        """The threads that must be locked before the recipient can be woken."""
        if is_person(self.reader):
            return frozenset()
        return frozenset(lanes_of(self.reader, self.message.thread_id))


class Waker:
    """Wakes the recipients of mail: within the transaction that stores a message, or in a later round."""

    def __init__(
        self,
        store: MailStore,
        run_queue: Mailbox,
        *,
        verified: bool,
        chat_delivery: ChatDelivery,
        chats: ChatOutbox | None = None,
    ) -> None:
        """Set the stores of mail and runs.

        `chat_delivery` records the delivery of messages to chats, and `chats` sends the messages.
        """
        self._chat_delivery = chat_delivery
        self._chats = chats
        self._store = store
        self._run_queue = run_queue
        self._verified = verified
        self._in_chats: set[str] = set()
        """The messages for chats of which it is not known whether the chats show them."""
        self._woken_by: dict[Hashable, frozenset[str]] = {}
        """The threads that the last message to each set of recipients needed, unless it needed none."""

    async def serve(self) -> None:
        """Wake recipients at each hint, every 5 s, and 1 s after a failure."""
        with self._store.changes.listen(WAKES) as hints:
            while True:
                woken, pause = 0, POLL
                try:
                    woken = await self.round()
                except PostroomError as error:
                    pause = AFTER_FAILURE
                    _LOG.warning("wakes.put_off", reason=error.describe())
                if not woken:
                    await hints.wait(pause)

    async def write(
        self,
        change: Callable[[MailWrites, OpenChange], T],
        *,
        key: str,
        readers: Hashable = None,
        thread_ids: frozenset[str] = frozenset(),
    ) -> T:
        """Make a change that stores messages and wakes the recipients.

        `readers` are the recipients that the call names, or None if only the change can find the recipients.
        The change runs in a transaction that holds the locks of the recipients' threads. If more locks are
        needed, the change is called again, so the change must be repeatable.
        """

        def opened(tx: Transaction, accept: Accept) -> tuple[T, OpenChange]:
            made = self.opened(tx, accept)
            made.refuses_full = True
            return change(tx.mail, made), made

        thread_ids |= self._woken_by.get(readers, frozenset())
        while True:
            try:
                done, made = await self._run_queue.accepting(thread_ids, opened, key=key)
                break
            except ThreadsNeeded as needed:
                thread_ids |= needed.thread_ids
        self._in_chats |= made.said
        if readers is not None and made.expected:
            if len(self._woken_by) >= MAX_REMEMBERED:
                self._woken_by.clear()  # a removed entry only costs one repetition of a change
            self._woken_by[readers] = made.expected
        else:
            self._woken_by.pop(readers, None)
        return done

    def opened(self, tx: Transaction, accept: Accept) -> OpenChange:
        """Return the object that wakes recipients within an open transaction."""
        return OpenChange(tx, accept, self._chats, self._verified)

    async def round(self) -> int:
        """Wake the recipients of stored messages who were not woken before, and return their number.

        Raises:
            StoreError: Mail or runs could not be reached. The next round continues.
        """
        done, after, shown, full = 0, (0, 0), set(self._in_chats), set[int]()
        while page := await self._store.read(partial(_unwoken, after=after)):
            after = page[-1]
            for message_id, agent_id in page:
                shown.discard(wake_key(message_id, agent_id))
                if wake_key(message_id, agent_id) not in self._in_chats and agent_id not in full:
                    done += await self._taken_up(message_id, agent_id, full)
        self._in_chats -= shown
        return done

    async def _taken_up(self, message_id: int, agent_id: int, full: set[int]) -> bool:
        look = partial(_find_waiting, message_id=message_id, agent_id=agent_id)
        seen = await self._store.read(look)
        if seen is None or (seen.chat is None and is_person(seen.reader)):
            return False
        if seen.chat is not None and (self._chats is None or not self._chats.reaches(seen.chat)):
            await self._chat_delivery.lost(
                wake_key(message_id, agent_id), f"this server has no channel for {seen.chat.name}"
            )
            return True

        def change(mail: MailWrites, open_change: OpenChange) -> bool:
            mail.lock_projects({seen.message.project_id, seen.reader[0].id})
            left, message = look(mail), seen.message
            if not is_person(seen.reader) and not open_change.has_room(
                seen.reader, message.thread_id, message.reply_to, message.sender_id
            ):
                full.add(agent_id)
                return False
            if left is not None:
                open_change.wake(
                    left.message, left.home, left.sender, [left.reader], is_answer=left.is_answer
                )
            return left is not None

        try:
            return await self.write(change, key=seen.reader[0].slug, thread_ids=seen.thread_ids)
        except IdempotencyConflict:  # an earlier release has added this message already, with another text
            self._in_chats.add(wake_key(message_id, agent_id))
            return False


def is_person(reader: Reader) -> bool:
    """Return whether a recipient is a person with a chat, and not an agent with a runner."""
    return reader[0].slug == PEOPLE_SLUG


def lanes_of(reader: Reader, mail_thread: str | None) -> list[str]:
    """Return the run thread on which an agent handles a mail thread, as a list with one name.

    If `mail_thread` is None, return all run threads of the agent.
    """
    project, agent = reader
    lanes = (
        range(agent.runs_at_once) if mail_thread is None else [choose_lane(mail_thread, agent.runs_at_once)]
    )
    return [agent_thread(project.slug, agent.name, lane) for lane in lanes]


def _unwoken(tx: MailReads, *, after: tuple[int, int]) -> list[tuple[int, int]]:
    return tx.unwoken(after=after, limit=_BATCH)


def _find_waiting(tx: MailReads, *, message_id: int, agent_id: int) -> _Left | None:
    if (message_id, agent_id) not in tx.unwoken(after=(message_id, agent_id - 1), limit=1):
        return None
    message = tx.message(message_id)
    if message is None:
        return None
    agents = tx.agents_by_id([agent_id, message.sender_id])
    homes = {agent.project_id: tx.project_by_id(agent.project_id) for agent in agents.values()}
    agent, sender, home = (
        agents.get(agent_id),
        agents.get(message.sender_id),
        tx.project_by_id(message.project_id),
    )
    room = None if agent is None else homes[agent.project_id]
    if agent is None or sender is None or home is None or room is None:
        return None
    return _Left(
        message=message,
        home=home,
        sender=sender,
        reader=(room, agent),
        chat=tx.chat_address(agent_id),
        is_answer=tx.answering_run(message_id) is not None,
    )
