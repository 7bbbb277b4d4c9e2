"""Takes messages in: kept first, then handed over in order, each once.

adapter ─▶ accept: kept in the intake log ─▶ the adapter tells its platform ─▶ (in the background) the runner
start ─▶ messages that a crash left waiting: in order, before anything new ─▶ the runner
now and then ─▶ messages of processes that died ─▶ the runner
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from postroom.contracts.chat import (
    MAX_INBOUND,
    InboundDraft,
    InboundMessage,
    InboundMove,
    InboundStatus,
)
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import (
    AlreadyConsumed,
    IllegalTransition,
    InvalidRecord,
    PostroomError,
    StoreUnavailable,
    SubmissionRejected,
    TooLarge,
    UnknownMessage,
)
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus
from postroom.gateway import wording
from postroom.gateway.arrivals import Arrival, Arrivals
from postroom.gateway.commands import may_be_changed_into
from postroom.gateway.config import GatewayConfig, reachable, short_name
from postroom.gateway.events import ButtonPress, MessageEvent
from postroom.gateway.group_talk import GroupTalk
from postroom.gateway.handover import CHANGED_INTO_COMMAND, inbound_key
from postroom.gateway.notices import notice_key
from postroom.gateway.platforms.base import KnownMessage, Metadata
from postroom.gateway.replies import answer_of, inbound_ids_of
from postroom.gateway.routes import decide
from postroom.gateway.run import GatewayRunner, Services
from postroom.gateway.session import SessionSource
from postroom.log import get_logger

_LOG = get_logger(__name__)
MOST_TEXT = 1_000_000
"""Characters of one message."""
_FORGOTTEN = "forgotten_answers"
"""The setting of a session in which earlier versions listed messages whose answers are not shown."""
_CANCELLED = "cancelled by its caller"
"""The reason stored with a message whose caller hung up or cancelled it."""
_LEFT_BEHIND_MS = 60_000
"""After which a message that still waits counts as left by a process that died."""


_ALBUM_MS = 1_000
"""How long the next file of an album is waited for: platforms send each as a message of its own."""
_MOST_ALBUMS = 1_000
_MOST_THREADS = 10_000


@dataclass(eq=False, slots=True)
class _Album:
    """Messages that are one: the files of an album, and what was said in its session after them."""

    album_id: str
    events: list[MessageEvent]
    behind: list[MessageEvent] = field(default_factory=list)


class Intake:
    """Where adapters hand messages over to."""

    def __init__(
        self,
        config: GatewayConfig,
        runner: GatewayRunner,
        services: Services,
        clock: Clock,
    ) -> None:
        self._config = config
        self._runner = runner
        self._stores = services.stores
        self._log = services.stores.intake_log
        self._people = services.people
        self._sessions = services.sessions
        self._group_talk = GroupTalk(config.group_context)
        self._handover = services.handover
        self._notices = services.notices
        self._metrics = services.metrics
        self._clock = clock
        self._in_hand: set[int] = set()
        self._coming: Counter[str] = Counter()
        """How many messages of each session are between their platform and their thread."""
        self._albums: dict[str, _Album] = {}
        """By session: albums of which more may come."""
        self._albums_for_us: OrderedDict[tuple[str, SessionSource], SessionSource] = OrderedDict()
        """By id and sender, the newest: only the first message of an album says for whom all of them are."""
        self._threads_answered: OrderedDict[tuple[str, ...], bool] = OrderedDict()
        """By place: whether we answer in a thread; the newest."""
        self._arrivals = Arrivals()
        self._timer = services.timer
        self._open = asyncio.Event()
        self.tasks = services.tasks

    # What adapters call.

    async def accept(self, event: MessageEvent) -> None:
        """Keep a message; durable when it returns. One that is known already is passed over.

        Raises:
            StoreError: it could not be kept.
            InputError: it can never be kept.
        """
        source = self._checked(event)
        arrival = self._arrivals.take(event, source)
        try:
            await arrival.decided()
            await self._open.wait()
            self._refuse_ended()
            task = await self._accepted(event, source, arrival)
        except BaseException:
            arrival.end()
            raise
        if not arrival.is_in_turn:
            arrival.lasts(task if event.is_command() else None)

    async def _accepted(
        self, event: MessageEvent, source: SessionSource, arrival: Arrival
    ) -> "asyncio.Task[None] | None":
        """Keep a message, and return what goes on with it in the background."""
        known = None if _album_of(event) is None else self._albums_for_us.get(_sent_album(event, source))
        event.addressed = event.addressed or await self._follows(event, source)
        if not (event.addressed or known or self._config.routes or self._config.group_context):
            return None  # said among others, and not to us
        source = await self._people.learn(source)
        routed = known or await self._routed(event, source)
        if routed is None:
            return None
        source = event.source = routed
        self._note_album(event, source)
        if event.addressed and self._people.may_write(source):
            self._note_thread(event, source, is_answered=True)
        session_key = self._config.session_key(source)
        if not event.is_command():
            event.metadata = self._group_talk.unread(source, session_key) | event.metadata
        draft = self._draft(event, source, session_key)
        # Otherwise it would overtake another, or the rest of its album.
        is_alone = not self._coming[draft.session_key] and _album_of(event) is None
        self._coming[draft.session_key] += 1
        try:
            if is_alone and arrival.may_come and await self._runner.begin(event, draft):
                self._metrics.message("accepted")
                return None
            return await self._keep(event, draft, arrival)
        finally:
            self._came(draft.session_key)

    async def _follows(self, event: MessageEvent, source: SessionSource) -> bool:
        """Return whether a message follows in a thread in which we answer, so that it needs no mention."""
        root = event.metadata.get("thread_root")
        if root is None or source.is_bot:
            return False
        place = (source.platform.value, source.account, source.chat_id, root)
        if place not in self._threads_answered:
            first = await self._log.find(inbound_key(source, root))
            unanswered = (InboundStatus.REJECTED, InboundStatus.RETRACTED)
            is_ours = first is not None and first.status not in unanswered
            if not is_ours:
                is_ours = await self._sessions.load(self._config.session_key(source)) is not None
            self._note_thread(event, source, is_answered=is_ours)
        return self._threads_answered[place]

    def _note_thread(self, event: MessageEvent, source: SessionSource, *, is_answered: bool) -> None:
        root = event.metadata.get("thread_root")
        if root is not None:
            place = (source.platform.value, source.account, source.chat_id, root)
            self._threads_answered[place] = is_answered
            self._threads_answered.move_to_end(place)
            while len(self._threads_answered) > _MOST_THREADS:
                self._threads_answered.popitem(last=False)

    async def _routed(self, event: MessageEvent, source: SessionSource) -> SessionSource | None:
        """Return where a message comes from with the agent that answers it; None when it is for nobody."""
        chosen = await self._chosen(source) if event.addressed else None
        decision = decide(self._config.routes, event, chosen)
        if decision is not None:
            return replace(source, agent=decision.agent)
        if self._people.may(source, PersonRole.VIEWER):
            passed_on = (f"(forwards {one.author or 'somebody'}: {one.text})" for one in event.forwarded)
            self._group_talk.heard(source, event.message_id, " ".join((event.text, *passed_on)))
        return None

    async def _chosen(self, source: SessionSource) -> str | None:
        """Return the agent that was chosen with /agent; one that cannot be reached any more is given up."""
        chosen = await self._sessions.chosen_agent(source)
        if chosen is None or chosen in reachable(self._config.routes, source):
            return chosen
        await self._sessions.choose_agent(source, None)
        key = f"gone/{chosen}/{self._clock.now()}"
        await self._notices.tell(source, wording.agent_gone(short_name(chosen)), key=key)
        return None

    async def _keep(
        self, event: MessageEvent, draft: InboundDraft, arrival: Arrival
    ) -> "asyncio.Task[None] | None":
        """Keep a message and have it handed over in the background: now, or behind a command of its chat."""
        received = await self._log.receive(draft)
        message = received.message
        if not received.is_new and (
            message.status is not InboundStatus.WAITING or message.inbound_id in self._in_hand
        ):
            self._metrics.message("duplicate")
            return None
        self._metrics.message("accepted" if received.is_new else "duplicate")
        event.inbound_id = message.inbound_id
        known = event if received.is_new else await self._read(message)
        if known is None:
            return None
        if not arrival.may_come:
            self._in_hand.add(message.inbound_id)
            arrival.waits_in_turn()
            name = f"message {message.inbound_id} in turn"
            self.tasks.start(self._resume_arrived(message, known, arrival), name=name)
            return None
        return (
            self._start(known, draft.session_key) if received.is_new else await self._resume(message, known)
        )

    def _came(self, session_key: str) -> None:
        """Note that a message of a session is no longer on its way."""
        self._coming[session_key] -= 1
        if not self._coming[session_key]:
            del self._coming[session_key]

    async def edited(self, event: MessageEvent) -> None:
        """Give a message other words, as long as no run has read it; later its sender is told so.

        Raises:
            StoreError: it could not be looked up.
        """
        source = self._checked(event)
        await self._people.learn(source)
        if not self._people.may_write(source):
            return
        key = inbound_key(source, event.message_id)
        known = await self._log.find(key)
        if known is None:
            return
        event.inbound_id = known.inbound_id
        told, before = event.text, MessageEvent.from_body(known.body)
        if not may_be_changed_into(before, event):
            await self._take_back(event, known, is_new=told != before.text)
            return
        if not event.media and not event.forwarded and not event.get_command_args().strip():
            return  # nothing is left to be read, and nothing says that it was taken back
        # Other words do not change who answers, nor what was said before them.
        was = before.source or source
        event.source = replace(source, agent=was.agent, person=was.person)
        event.metadata = {**known.body.get("metadata", {}), **event.metadata}
        if _album_of(event) is not None:  # an edit tells of one file, the message has those of the others too
            event.media = before.media
        try:
            kept = await self._log.edit(key, event.to_body())
            event.text = event.get_command_args()
            in_time = await self._handover.follow_edit(event, kept)
        except UnknownMessage:
            return
        except AlreadyConsumed:
            in_time = False
        # A platform tells of an edit also when only a preview or a reaction came to it.
        if not in_time and (before.text != told or known.reason == CHANGED_INTO_COMMAND):
            await self._tell_of_edit(event, told, _too_late(known))

    async def _take_back(self, event: MessageEvent, known: InboundMessage, *, is_new: bool) -> None:
        """Take back a message that was changed into a command: what one sees twice is not done twice."""
        if not is_new:
            return
        in_time = known.status.is_open and await self._handover.follow_deletion(
            known, reason=CHANGED_INTO_COMMAND
        )
        done = wording.edited_into(event.text.split(maxsplit=1)[0]) if in_time else _too_late(known)
        await self._tell_of_edit(event, event.text, done)

    async def _tell_of_edit(self, event: MessageEvent, told: str, text: str) -> None:
        """Tell who changed a message what became of that, once for each wording that they gave it."""
        words = sha256(told.encode("utf-8", "replace")).hexdigest()[:16]
        key = f"{notice_key('edited', event.inbound_id)}/{words}"
        await self._notices.answer(event, text, key=key, is_answer=False)

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        """Take a message back, as long as no run has read it.

        Raises:
            StoreError: it could not be looked up.
        """
        message = await self._log.find(inbound_key(source, message_id))
        if message is not None and message.status.is_open:
            await self._handover.follow_deletion(message)

    async def moved(self, source: SessionSource, chat_id: str) -> None:
        """Have a group's sessions go on under its new id.

        Raises:
            StoreError: it could not be stored.
        """
        moved = await self._sessions.follow(source.platform, source.account, source.chat_id, chat_id)
        _LOG.info("chat.moved", platform=source.platform.value, sessions=moved)

    async def pressed(self, press: ButtonPress) -> str:
        """Take a pressed button and return a note for whoever pressed it."""
        source = await self._people.learn(press.source)
        return await self._runner.pressed(replace(press, source=source))

    async def look_up(self, source: SessionSource, message_id: str) -> KnownMessage | None:
        """Return a message that was kept, with its answer when there is one; None when it is not known.

        Raises:
            StoreError: it could not be looked up.
        """
        message = await self._log.find(inbound_key(source, message_id))
        if message is None:
            return None
        answer, details = (None, {}) if message.status.is_open else await self._answer_to(message)
        session = await self._sessions.load(message.session_key)
        is_listed = session is not None and message_id in session.settings.get(_FORGOTTEN, ())
        is_cancelled = message.status is InboundStatus.RETRACTED and message.reason == _CANCELLED
        return KnownMessage(
            event=MessageEvent.from_body(message.body, inbound_id=message.inbound_id),
            received_at=message.received_at,
            answer=answer,
            details=details,
            is_forgotten=message.body.get("metadata", {}).get("forgotten", False) or is_listed,
            is_cancelled=is_cancelled,
        )

    async def forget_answer(self, source: SessionSource, message_id: str) -> None:
        """Have the answer to a message not be shown any more; the conversation keeps it.

        Raises:
            StoreError: it could not be stored.
            UnknownMessage: the message was never received.
        """
        await self._log.forget_answer(inbound_key(source, message_id))

    async def cancel_answer(
        self, source: SessionSource, message_id: str, is_waited_for: Callable[[str], bool]
    ) -> bool:
        """Cancel the run that answers a message, or take the message back if no run has read it.

        A run goes on if it also answers a background request, or a message whose id satisfies
        `is_waited_for`. Return False if the run goes on, or if the message already has its answer.

        Raises:
            StoreError: The cancel could not be stored.
        """
        key = inbound_key(source, message_id)
        message = await self._log.find(key)
        if message is not None and message.status is InboundStatus.WAITING:
            await self._note_cancelled(message)
            message = await self._log.find(key)
            if message is not None and message.thread_id is None:
                return message.status is InboundStatus.RETRACTED
        elif message is None or not message.status.is_open:
            return False
        if message is None or message.thread_id is None:
            return False
        if await self._handover.taken_back(message.thread_id, message.thread_message_id):
            await self._note_cancelled(message)
            return True
        run, _ = await self._stores.run_that_read(message)
        if run is None or run.status is RunStatus.DONE:
            return False
        read, _ = await self._stores.answered(inbound_ids_of(run)[:MAX_INBOUND], run.thread_id, None)
        for other in read:
            is_background = other.body.get("metadata", {}).get("background", False)
            if other.key.message_id != message_id and (is_background or is_waited_for(other.key.message_id)):
                return False
        await self._note_cancelled(message)
        return await self._handover.cancel(run.run_id)

    async def _note_cancelled(self, message: InboundMessage) -> None:
        """Store that the caller of a message has cancelled it, unless it has got its answer meanwhile."""
        cancelled = InboundMove(status=InboundStatus.RETRACTED, reason=_CANCELLED)
        with suppress(IllegalTransition):
            await self._log.move([message.inbound_id], cancelled)

    async def _answer_to(self, message: InboundMessage) -> tuple[str, Metadata]:
        """Return the text and the details of the answer to a message that is not open any more."""
        if message.status in (InboundStatus.REJECTED, InboundStatus.RETRACTED):
            why = message.reason or message.status.value
            return why, {"error": why, "code": SubmissionRejected.code}
        run, reasoning = await self._stores.run_that_read(message)
        if run is not None:
            answer = answer_of(run)
            return answer.text, {**answer.details, "reasoning": reasoning}
        text = message.reason or wording.ANSWER_NOT_STORED
        is_answer = message.status is InboundStatus.DONE and message.reason is not None
        return text, {} if is_answer else {"error": text}

    # What was left behind.

    async def recover(self) -> int:
        """Hand over what a crash left waiting, in order; then let others in. Return how many that were."""
        taken = await self._resume_waiting(older_than=None)
        self._open.set()
        return taken

    async def sweep(self) -> int:
        """Hand over what processes that died have left waiting; return how many messages."""
        return await self._resume_waiting(older_than=self._clock.now() - _LEFT_BEHIND_MS)

    async def close(self) -> None:
        """Let nothing more in, and end what is being handed over: it is kept. Who waits is refused."""
        await self.tasks.close()
        self._open.set()

    def _refuse_ended(self) -> None:
        if self.tasks.closed:
            raise StoreUnavailable("the gateway is ending; send it again")

    async def _resume_waiting(self, *, older_than: int | None) -> int:
        taken, after = 0, 0
        while page := await self._log.open_messages(status=InboundStatus.WAITING, after=after):
            after = page[-1].inbound_id
            for message in page:
                late = older_than is None or message.updated_at < older_than
                event = None
                if late and message.inbound_id not in self._in_hand:
                    event = await self._read(message)
                if event is not None and event.source is not None:
                    taken += await self._resume_in_turn(message, event, event.source)
        return taken

    async def _resume_in_turn(
        self, message: InboundMessage, event: MessageEvent, source: SessionSource
    ) -> bool:
        """Hand over what was left waiting, in the background where it stands behind a command of its chat.

        Return whether it is in hand.
        """
        arrival = self._arrivals.take(event, source)
        if arrival.may_come:
            await self._resume_arrived(message, event, arrival)
        else:
            self._in_hand.add(message.inbound_id)
            self.tasks.start(
                self._resume_arrived(message, event, arrival), name=f"message {message.inbound_id} in turn"
            )
        return message.inbound_id in self._in_hand

    async def _resume_arrived(self, message: InboundMessage, event: MessageEvent, arrival: Arrival) -> None:
        task = None
        try:
            await arrival.come()
            self._in_hand.discard(message.inbound_id)
            task = await self._resume(message, event)
        finally:
            arrival.lasts(task if event.is_command() else None)

    async def _read(self, message: InboundMessage) -> MessageEvent | None:
        """Return a message as it came; None when it cannot be read, and is closed."""
        try:
            return MessageEvent.from_body(
                message.body, inbound_id=message.inbound_id, revision=message.revision
            )
        except (KeyError, TypeError, ValueError) as error:
            await self._reject(message.inbound_id, f"it cannot be read: {type(error).__name__}")
            return None

    async def _resume(self, message: InboundMessage, event: MessageEvent) -> "asyncio.Task[None] | None":
        most = self._config.max_message_age
        if self._clock.now() - message.received_at > milliseconds(most):
            notice = wording.too_old(int(most.total_seconds() // 60))
            await self._notices.refuse(event, notice, key=notice_key("told", message.inbound_id))
            await self._reject(message.inbound_id, notice)
            return None
        if event.source is not None:
            event.source = await self._people.learn(event.source)
            self._note_album(event, event.source)
        return self._start(event, message.session_key)

    async def _reject(self, inbound_id: int, why: str) -> None:
        try:
            await self._log.move([inbound_id], InboundMove(status=InboundStatus.REJECTED, reason=why))
        except IllegalTransition:
            return  # another process was faster
        self._metrics.message("rejected")

    def _start(self, event: MessageEvent, session_key: str) -> "asyncio.Task[None] | None":
        """Hand a message over in the background. Those of one session are begun in the order of the calls."""
        inbound_id = event.inbound_id or 0
        if self.tasks.closed:
            return None  # it is kept, and found at the next start
        self._in_hand.add(inbound_id)
        self._coming[session_key] += 1
        album_id, album = _album_of(event), self._albums.get(session_key)
        if album is not None and not event.is_command():
            (album.events if album_id == album.album_id else album.behind).append(event)
        elif album_id is not None:
            album = self._albums[session_key] = _Album(album_id, [event])
            self.tasks.start(self._run_album(album, session_key), name=f"album {inbound_id}")
        else:
            return self._handle(event, inbound_id, session_key)
        return None

    def _handle(self, event: MessageEvent, inbound_id: int, session_key: str) -> "asyncio.Task[None]":
        return self.tasks.start(
            self._run_handler(event, inbound_id, session_key), name=f"message {inbound_id}"
        )

    async def _run_album(self, album: _Album, session_key: str) -> None:
        """Wait until no more of an album comes, and hand it over as one message."""
        seen = 0
        while seen < len(album.events):
            seen = len(album.events)
            await self._timer.sleep(_ALBUM_MS)
        taken = len(album.events)
        first, *others = sorted(album.events, key=lambda event: event.inbound_id or 0)
        try:
            await self._merge(first, others)
            self._handle(first, first.inbound_id or 0, session_key)
        except PostroomError as error:
            _LOG.warning("message.left_waiting", inbound_id=first.inbound_id, reason=error.describe())
            others.append(first)
        for event in others:
            self._in_hand.discard(event.inbound_id or 0)
            self._came(session_key)
        del self._albums[session_key]  # now: what came while they were merged stands behind them
        for event in (*album.events[taken:], *album.behind):
            self._in_hand.discard(event.inbound_id or 0)
            self._start(event, session_key)
            self._came(session_key)

    async def _merge(self, first: MessageEvent, others: Sequence[MessageEvent]) -> None:
        """Give the first message of an album the files and words of the others, which are then done.

        Cut off in between it is done again: what the first has already it is not given twice.

        Raises:
            StoreError: it could not be kept.
        """
        if not others or first.source is None:
            return
        given = first.metadata.get("album", [])
        new = [event for event in others if event.message_id not in given]
        texts = dict.fromkeys(event.text for event in (first, *new) if event.text.strip())
        # Each message of an album answers the same message: its files are given once, with the first.
        own = (event.media[: len(event.media) - event.metadata.get("answered_files", 0)] for event in new)
        first.media += tuple(file for files in own for file in files)
        first.forwarded = tuple(dict.fromkeys(one for event in (first, *new) for one in event.forwarded))
        first.unread = tuple(dict.fromkeys(one for event in (first, *new) for one in event.unread))
        first.text = "\n".join(texts)
        first.metadata["album"] = [*given, *(event.message_id for event in new)]
        try:
            kept = await self._log.edit(inbound_key(first.source, first.message_id), first.to_body())
        except (AlreadyConsumed, UnknownMessage):
            return  # it was taken back meanwhile, or another process was faster
        first.revision = kept.revision
        done = InboundMove(status=InboundStatus.DONE, reason=f"one with message {first.inbound_id}")
        for event in others:
            try:
                await self._log.move([event.inbound_id or 0], done)
            except IllegalTransition:
                continue  # as above

    def _note_album(self, event: MessageEvent, source: SessionSource) -> None:
        """Note that the other messages of an album are for us too, however late they come."""
        if _album_of(event) is not None:
            self._albums_for_us[_sent_album(event, source)] = source
            while len(self._albums_for_us) > _MOST_ALBUMS:
                self._albums_for_us.popitem(last=False)

    async def _run_handler(self, event: MessageEvent, inbound_id: int, session_key: str) -> None:
        try:
            await self._runner.handle(event)
        except PostroomError as error:
            _LOG.warning("message.left_waiting", inbound_id=inbound_id, reason=error.describe())
        finally:
            self._in_hand.discard(inbound_id)
            self._came(session_key)

    def _draft(self, event: MessageEvent, source: SessionSource, session_key: str) -> InboundDraft:
        return InboundDraft(
            key=inbound_key(source, event.message_id),
            session_key=session_key,
            sender_id=source.user_id,
            body=event.to_body(),
        )

    def _checked(self, event: MessageEvent) -> SessionSource:
        source = event.source
        if source is None or not event.message_id or not (source.chat_id or source.user_id):
            raise InvalidRecord(
                "a message needs a source, a chat and an id of its own", value=event.message_id
            )
        if event.metadata.get("verified") is False:  # whoever it says it is from may not have sent it
            source = event.source = replace(source, user_id=None)
        if len(event.text) > MOST_TEXT:
            raise TooLarge(f"a message of {len(event.text)} characters", value=len(event.text))
        return source


def _too_late(known: InboundMessage) -> str:
    """Say why other words of a message are not read."""
    unread = known.status in (InboundStatus.RETRACTED, InboundStatus.REJECTED)
    return wording.EDITED_UNREAD if unread else wording.EDITED_TOO_LATE


def _sent_album(event: MessageEvent, source: SessionSource) -> tuple[str, SessionSource]:
    """Return what the messages of one album have in common."""
    return _album_of(event) or "", replace(source, agent=None, person=None)


def _album_of(event: MessageEvent) -> str | None:
    album_id = event.metadata.get("media_group_id")
    return album_id if isinstance(album_id, str) and event.media else None
