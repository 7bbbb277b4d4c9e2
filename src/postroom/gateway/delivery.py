"""Delivers outgoing messages to chats: the outbox handler for chat rows.

    address ─▶ sent, part by part ─▶ the change that ends the row also closes the answered messages
                 │ temporary failure: retried later, with growing pauses
                 │ permanent failure, or too old: dead letter, and the answered messages have failed
                 └ the answer was lost: retried, and marked as a possible duplicate

Each row is delivered at least once. If a crash interrupts a delivery, the message is sent again, and is
marked as a possible duplicate.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec

from postroom.contracts.chat import MAX_INBOUND, InboundMove, InboundStatus, chat_lock
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import PostroomError
from postroom.contracts.files import ChatFile
from postroom.contracts.mail import Attachment
from postroom.contracts.messages import Json
from postroom.contracts.outbox import OutboxDraft, OutboxMessage
from postroom.contracts.people import ChatAddress
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.capabilities import SMALLEST_LIMIT
from postroom.gateway.config import GatewayConfig
from postroom.gateway.events import Card, SendErrorKind, SendResult
from postroom.gateway.files import attached, read_content, to_attachment
from postroom.gateway.metrics import GatewayMetrics
from postroom.gateway.pacing import UNTOLD_MS
from postroom.gateway.platforms.base import UNKNOWN_ACCOUNT, BasePlatformAdapter, send_metadata
from postroom.gateway.replies import Reply, ReplyKind, card_of, target_name, thread_name
from postroom.gateway.session import SessionSource, inbound_key
from postroom.gateway.splitting import split
from postroom.gateway.streaming import StreamingPresenter, shows_drafts
from postroom.log import get_logger
from postroom.ports import ChatDelivery
from postroom.relay import NotPerformed, Outcome, Performed
from postroom.stores.chats.stores import ChatStores
from postroom.stores.outbox import OutboxTables
from postroom.stores.store import Joined, Transaction

_CANNOT_EDIT = (SendErrorKind.NOT_FOUND, SendErrorKind.BAD_FORMAT, SendErrorKind.FORBIDDEN)
_TRIES_TO_FIT = 4
_TEXT = 1
"""The step number of a reply's text. A reply is sent in steps: first the text, then each file."""
_LOOKED_AGAIN_MS = 300_000
"""The interval, in milliseconds, at which changed quiet hours are noticed."""


@dataclass(frozen=True, slots=True)
class ReplyAddress:
    """The chat that gets a reply, and the inbound messages that the reply answers.

    `files` are sent after the text of the reply.
    """

    source: SessionSource
    answers: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    files: tuple[ChatFile, ...] = ()


@dataclass(slots=True)
class OutgoingMessage:
    """A text that is sent in one or more parts.

    The platform has accepted the first `sent` parts. If `draft_id` is set, the first part replaces the draft
    with this id.
    """

    key: str
    """The permanent key of the text. The dedupe keys of the parts are derived from this key."""
    address: ReplyAddress
    parts: list[str] = field(default_factory=list)
    sent: int = 0
    draft_id: str | None = None
    stale_id: str | None = None
    """The id of a draft that the chat shows and that could not be edited into the text.

    This draft is deleted when the text has arrived.
    """
    opening: str = ""
    """The text that the first card shows above its question."""
    steps_sent: int = 0
    """The number of files or cards after the text that have certainly arrived."""
    marks_step: bool = False
    """Whether an earlier attempt may already have delivered the next file or card."""
    details: dict[str, Json] = field(default_factory=dict)
    """Details that the channel gets with the last part. See `Metadata`."""
    is_under_way: bool = False
    """Whether a part is being sent.

    If an attempt begins with this flag set, the part may have been sent already.
    """

    async def send_rest(self, adapter: BasePlatformAdapter) -> SendResult:
        """Send the remaining parts of the text, until the platform refuses a part."""
        result = SendResult.sent()
        tries = 0
        if self.is_under_way:
            self._mark(adapter)
        while self.sent < len(self.parts):
            self.is_under_way = True
            part, source, number = self.parts[self.sent], self.address.source, self.sent
            is_last = number == len(self.parts) - 1
            metadata = send_metadata(
                source,
                dedupe_key=f"{self.key}/{number}",
                answers=list(self.address.answers),
                final=is_last,
                **(self.details if is_last else {}),
            )
            replaces_draft = False
            if number == 0 and self.draft_id is not None:
                result = await adapter.edit_message(source.chat_id, self.draft_id, part, metadata)
                replaces_draft = result.success or result.error_kind not in _CANNOT_EDIT
                self.draft_id = self.draft_id if replaces_draft else None
            if not replaces_draft:
                reply_to = self.address.answers[-1] if self.address.answers and number == 0 else None
                result = await adapter.send(source.chat_id, part, reply_to, metadata)
            self.is_under_way = False
            if result.success:
                self.sent, tries = self.sent + 1, 0
            elif result.error_kind is SendErrorKind.TOO_LONG and tries < _TRIES_TO_FIT:
                tries += 1
                # Split the next part again, because its markup made it too long for the platform.
                unit = adapter.capabilities.unit
                limit = max(unit.measure(part) * 2 // 3, SMALLEST_LIMIT)
                self.parts[self.sent : self.sent + 1] = split(part, limit=limit, unit=unit)
            else:
                if result.error_kind is not None and result.error_kind.may_have_arrived:
                    self._mark(adapter)
                return result
        if self.stale_id is not None:
            source, stale, self.stale_id = self.address.source, self.stale_id, None
            await adapter.delete_message(source.chat_id, stale, send_metadata(source))
        return result

    def _mark(self, adapter: BasePlatformAdapter) -> None:
        """Mark the next part as a possible duplicate."""
        part, capabilities = self.parts[self.sent], adapter.capabilities
        if capabilities.dedupes:
            return
        if not part.startswith(wording.POSSIBLE_DUPLICATE) and (self.sent or self.draft_id is None):
            marked = f"{wording.POSSIBLE_DUPLICATE}\n{part}"
            fitting = split(marked, limit=capabilities.limit, unit=capabilities.unit)
            self.parts[self.sent : self.sent + 1] = fitting


_LOG = get_logger(__name__)
_MAX_CARDS = 50
_NO_CHANNEL = SendResult.failed(SendErrorKind.NOT_FOUND, "the chat's channel is not connected to this server")
NO_SUCH_CARD = (SendErrorKind.NOT_FOUND, SendErrorKind.BAD_FORMAT)


@dataclass(frozen=True, slots=True)
class _Closes:
    """The inbound messages that a reply answers and closes."""

    inbound_ids: tuple[int, ...] = ()
    chats: tuple[str, ...] = ()
    """The locks of the chats to which these messages belong."""
    is_done: bool = False
    """Whether all these messages were already closed when they were read."""

    def change(self, failed: str | None, voice: OutboxDraft | None = None) -> Joined:
        """Return the database change that closes the messages and queues the voice message of the reply."""
        move = InboundMove(status=InboundStatus.FAILED if failed else InboundStatus.DONE, reason=failed)

        def change(tx: Transaction) -> None:
            if self.inbound_ids:
                tx.chats.move_inbound(self.inbound_ids, move, tx.now())
            if voice is not None:
                tx.outbox.enqueue((voice,))

        return Joined(locks=(*self.chats, *(() if voice is None else voice.locks)), change=change)


class Delivery:
    """Delivers messages through the bots that are connected in this process."""

    at_once = 32
    together = False

    def __init__(
        self,
        stores: ChatStores,
        presenter: StreamingPresenter,
        config: GatewayConfig,
        *,
        clock: Clock,
        metrics: GatewayMetrics,
        mail: ChatDelivery | None = None,
    ) -> None:
        self.lease = config.delivery.lease
        self.retries = config.delivery.first_retry, config.delivery.longest_retry
        self._adapters: dict[str, BasePlatformAdapter] = {}
        self._mail = mail
        self._stores = stores
        self._sessions = presenter.sessions
        self._presenter = presenter
        self._config, self._chats = config.delivery, config
        self._clock = clock
        self._metrics = metrics
        self._outgoing: dict[str, OutgoingMessage] = {}
        self.voice_of: Callable[[OutboxMessage, Reply, SessionSource], Awaitable[OutboxDraft | None]] | None
        self.voice_of = None
        """Return the voice message that follows a reply, if the chat gets spoken answers."""

    def speak_for(self, adapters: Sequence[BasePlatformAdapter]) -> None:
        """Set the adapters through which messages are delivered from now on."""
        # A server that has not connected a bot does not know the bot's account, so other servers deliver the
        # bot's messages.
        self._adapters = {
            target_name(adapter.platform.value, UNKNOWN_ACCOUNT): adapter for adapter in adapters
        }
        self._adapters |= {
            target_name(adapter.platform.value, adapter.account): adapter for adapter in adapters
        }
        # If this server has lost a bot, another server finishes the deliveries that this server began.
        self._outgoing = {
            key: outgoing
            for key, outgoing in self._outgoing.items()
            for source in [outgoing.address.source]
            if target_name(source.platform.value, source.account) in self._adapters
        }

    def serves(self, target: str) -> bool:
        """Return whether the bot of an outbox target is connected in this process."""
        adapter = self._adapters.get(target)
        return adapter is not None and adapter.is_ours()

    async def perform(self, rows: Sequence[OutboxMessage]) -> Outcome:
        """Deliver a reply from the outbox, and return the outcome.

        A failed delivery is retried later or becomes a dead letter.

        Raises:
            StoreError, ChannelError: The outcome could not be stored. The row is delivered again.
        """
        [row] = rows
        try:
            reply = Reply.of(row)
        except msgspec.ValidationError as error:
            return await self._given_up(
                row, None, _Closes(), f"the stored reply cannot be read: {type(error).__name__}"
            )
        if reply.kind is ReplyKind.UPDATE:
            self._metrics.gave_up()
            return NotPerformed(
                error=reply.error or "an update from the platform could not be processed", final=True
            )
        address, closes = await self._answered(row, reply)
        if closes.is_done and row.may_have_arrived:
            # an earlier release closed the messages, and died before it acknowledged the row
            return Performed()
        # The age is counted from the creation of the row only after the first attempt: before, the row may
        # have had to wait.
        since = row.created_at if row.attempt_count > 1 else max(row.created_at, row.available_at)
        if self._clock.now() - since > milliseconds(self._config.max_age):
            return await self._given_up(
                row, reply, closes, "the reply is older than max_age, so it is not sent"
            )
        if address is None:
            return await self._given_up(row, reply, closes, "the chat of the reply is unknown")
        quiet = await self._sessions.quiet_hours(address.source.address) if reply.keeps_quiet else None
        if quiet is not None and (left := quiet.left_ms(self._clock.now())):
            return NotPerformed(error=wording.QUIET, untried=True, not_before_ms=min(left, _LOOKED_AGAIN_MS))
        # Read this before the text is sent: a failure of the store after it would send the text again.
        voice = None if self.voice_of is None else await self.voice_of(row, reply, address.source)
        result = await self._sent(row, reply, address)
        is_served = self.serves(row.target)
        if result is _NO_CHANNEL and (not is_served or self._target(row, address.source) in self._adapters):
            # This server lost the channel after it claimed the row: the server was frozen, or is stopping.
            rest = UNTOLD_MS if is_served else 0
            return NotPerformed(
                error="another server is connected to the chat's channel", untried=True, not_before_ms=rest
            )
        if not result.success:
            return await self._handle_failure(row, reply, closes, result)
        # Return the outcome of a delivered row, with the change that closes the answered messages.
        change = closes.change(reply.failed, voice)
        if reply.mail_key is not None and self._mail is not None:
            await self._mail.arrived(reply.mail_key)
        self._outgoing.pop(row.outbox_id, None)
        self._metrics.delivered(self._clock.now() - row.created_at)
        self._presenter.seen.clear(closes.inbound_ids)
        if reply.run_id and not reply.questions:  # a run that asked a question may have a new draft already
            self._presenter.drafts.pop(reply.run_id, None)
        return Performed(also=change)

    async def _answered(self, row: OutboxMessage, reply: Reply) -> tuple[ReplyAddress | None, _Closes]:
        """Return the address of a reply, and the inbound messages that the reply closes."""
        if reply.says_where and reply.source is not None and not row.may_have_arrived:
            source = SessionSource.from_dict(reply.source)
            chat = chat_lock(inbound_key(source, None))
            return ReplyAddress(source, reply.answers), _Closes(reply.inbound_ids, (chat,))
        run_id = reply.run_id if reply.kind is ReplyKind.ANSWER else None
        inbound, files = await self._stores.answered(reply.inbound_ids[:MAX_INBOUND], reply.thread_id, run_id)
        read, asks = tuple(message.key.message_id for message in inbound), reply.kind is ReplyKind.QUESTION
        target, address = reply.source or (inbound[-1].body.get("source") if inbound else None), None
        if target:
            place: SessionSource | None = SessionSource.from_dict(target)
        else:
            stored_address = await self._sessions.address(reply.thread_id)
            place = None if stored_address is None else stored_address[1]
        if place is not None:
            address = ReplyAddress(place, reply.answers or (() if asks else read), read, files)
        if asks:  # a question closes no messages
            return address, _Closes()
        chats = tuple(sorted({chat_lock(message.key) for message in inbound}))
        is_done = bool(inbound) and not any(message.status.is_open for message in inbound)
        return address, _Closes(tuple(message.inbound_id for message in inbound), chats, is_done)

    async def _sent(self, row: OutboxMessage, reply: Reply, address: ReplyAddress) -> SendResult:
        try:
            if reply.kind is ReplyKind.CARD:  # the card of a question or notice shows the answer or choice
                place, card_id = reply.source, reply.card
                if card_id is None or place is None:
                    card = (await self._cards(reply.thread_id)).get(reply.question or "")
                    if card is None:  # there is no card to update
                        return SendResult.sent()
                    place, card_id = card["source"], card["id"]
                source = SessionSource.from_dict(place)
                channel = self.find_adapter(row, source)
                if channel is None:
                    return _NO_CHANNEL
                metadata, shown = send_metadata(source), Card(text=reply.text)  # without buttons
                result = await channel.update_card(source.chat_id, card_id, shown, metadata)
                return SendResult.sent() if result.error_kind in NO_SUCH_CARD else result
            adapter = self.find_adapter(row, address.source)
            return _NO_CHANNEL if adapter is None else await self._send(adapter, row, reply, address)
        except PostroomError:
            raise
        except Exception as error:  # adapters must not raise this; it counts as a failed attempt
            _LOG.exception("reply.adapter_broke", outbox_id=row.outbox_id)
            return SendResult.failed(SendErrorKind.UNKNOWN, type(error).__name__)

    def find_adapter(self, row: OutboxMessage, source: SessionSource) -> BasePlatformAdapter | None:
        """Return the adapter through which a reply is sent to a chat."""
        target = self._target(row, source)
        return self._adapters.get(target) if self.serves(target) else None

    def _target(self, row: OutboxMessage, source: SessionSource) -> str:
        return row.target if source.person is None else target_name(source.platform.value, source.account)

    async def _send(
        self, adapter: BasePlatformAdapter, row: OutboxMessage, reply: Reply, address: ReplyAddress
    ) -> SendResult:
        if reply.choices:
            is_marked = row.may_have_arrived and not adapter.capabilities.dedupes
            source, mark = address.source, f"{wording.POSSIBLE_DUPLICATE}\n" * is_marked
            metadata = send_metadata(
                source, dedupe_key=row.outbox_id, answers=list(address.answers), final=True
            )
            card = Card(text=mark + reply.text, buttons=reply.choices)
            return await adapter.send_card(source.chat_id, card, metadata)
        if reply.waits_for is not None and self._presenter.has_begun(reply.waits_for):
            return SendResult.sent()
        outgoing = self._outgoing.get(row.outbox_id)
        if outgoing is None:
            outgoing = self._outgoing[row.outbox_id] = await self._begin(adapter, row, reply, address)
        result = await outgoing.send_rest(adapter)
        if not result.success:
            return result
        if reply.waits_for is not None and result.message_id is not None:
            self._presenter.keep_waiting(address.source, reply.waits_for, result.message_id)
        elif self._presenter.waiting:
            self._presenter.end_waiting(address.source, address.answers)
        if reply.questions:
            return await self._ask(adapter, reply, outgoing)
        files = outgoing.address.files
        if not files:  # the files of a mail message
            for position, file in enumerate(reply.files):
                files += (await attached(file, reply.thread_id, position, self._stores.files),)
        return await self._send_files(adapter, outgoing, files) if files else result

    async def _send_files(
        self, adapter: BasePlatformAdapter, outgoing: OutgoingMessage, files: tuple[ChatFile, ...]
    ) -> SendResult:
        """Send the files of a reply, and tell the chat about each refused file."""
        if not outgoing.steps_sent:
            await self._stores.note_sent(outgoing.key, _TEXT)
        for file in files[outgoing.steps_sent :]:
            source = outgoing.address.source
            metadata = send_metadata(source, dedupe_key=f"{outgoing.key}/file/{file.position}", final=True)
            result = SendResult.failed(SendErrorKind.NOT_FOUND, file.missing or "")
            if file.missing is None:
                content = read_content(file, self._stores.files)
                is_marked = outgoing.marks_step and not adapter.capabilities.dedupes
                mark = wording.POSSIBLE_DUPLICATE if is_marked else None
                result = await adapter.send_media(
                    source.chat_id, to_attachment(file), content, mark, metadata
                )
            kind = None if result.success else result.error_kind or SendErrorKind.UNKNOWN
            if kind is not None and kind.may_pass:
                outgoing.marks_step |= kind.may_have_arrived
                return result
            outgoing.marks_step = False
            if not result.success:
                text = wording.file_not_sent(file.name, result.error or "the chat rejected the file")
                result = await adapter.send(source.chat_id, text, None, metadata)
            if not result.success:
                return result
            outgoing.steps_sent += 1
            if outgoing.steps_sent < len(files):
                await self._stores.note_sent(outgoing.key, _TEXT + outgoing.steps_sent)
        return SendResult.sent()

    async def _begin(
        self, adapter: BasePlatformAdapter, row: OutboxMessage, reply: Reply, address: ReplyAddress
    ) -> OutgoingMessage:
        """Prepare the text of a reply for sending."""
        outgoing = OutgoingMessage(row.outbox_id, address)
        asks, capabilities = bool(reply.questions), adapter.capabilities
        if row.steps_done:  # an earlier process has sent the text
            outgoing.steps_sent, outgoing.marks_step = row.steps_done - _TEXT, row.may_have_arrived
            return outgoing
        cards = await self._cards(reply.thread_id) if asks else {}
        shown = [cards[question.number] for question in reply.questions if question.number in cards]
        is_told = not reply.text.strip() or any(card.get("said") == _digest_of_text(reply) for card in shown)
        is_alone = shows_drafts(capabilities) or len(shown) == len(reply.questions)
        if asks and (is_told or capabilities.holds_requests or not is_alone):
            outgoing.opening = "" if is_told else reply.text.strip()
            outgoing.marks_step = row.may_have_arrived
            self._presenter.drafts.pop(reply.run_id or "", None)
            return outgoing
        text, source = reply.text.strip() or wording.NO_ANSWER, address.source
        if reply.kind in (ReplyKind.ANSWER, ReplyKind.QUESTION):
            # The text begins with the name of its agent, and ends with its cost if the chat shows costs.
            of_chat = self._chats.get_rules(source.platform, source.chat_id).show_cost
            is_cost_shown = self._chats.show_cost if of_chat is None else of_chat
            if is_cost_shown and any(reply.usage) and not capabilities.holds_requests:
                text = f"{text}\n\n({wording.used_up(*reply.usage, reply.cost_micros)})"
            text = self._sessions.label(source) + text
        if row.may_have_arrived and not capabilities.dedupes:
            text = f"{wording.POSSIBLE_DUPLICATE}\n{text}"
        outgoing.parts = list(split(text, limit=capabilities.limit, unit=capabilities.unit))
        outgoing.details = reply.details
        if asks:
            outgoing.address = replace(address, answers=address.read)
            outgoing.marks_step = row.may_have_arrived
        elif capabilities.reasoning and reply.kind is ReplyKind.ANSWER and reply.run_id:
            outgoing.details["reasoning"] = await self._stores.reasoning(reply.thread_id, reply.run_id)
        if not reply.run_id:
            return outgoing
        # Let the reply replace the draft that the chat shows for the run.
        presenter, asked_by = self._presenter, outgoing.key if asks else None
        drawn, session = presenter.drafts.get(reply.run_id), None
        if drawn is None or asked_by is not None:
            session = await self._sessions.address(reply.thread_id)
        if drawn is not None:
            await drawn.settled()
            if drawn.message_id is not None and drawn.draft.finish():
                outgoing.draft_id = drawn.message_id
            else:
                outgoing.stale_id = drawn.message_id
        elif session is not None and reply.kind is not ReplyKind.NOTICE:
            outgoing.draft_id = await presenter.left_draft(adapter, session[0], reply.run_id, asked_by)
        message_id = outgoing.draft_id or outgoing.stale_id
        if asked_by is not None and session is not None and message_id is not None:
            await presenter.leave_to_question(adapter, session[0], reply.run_id, message_id, asked_by)
        return outgoing

    async def _ask(self, adapter: BasePlatformAdapter, reply: Reply, outgoing: OutgoingMessage) -> SendResult:
        """Send a card for each question of a reply, and store the ids of the cards."""
        source, result = outgoing.address.source, SendResult.sent()
        cards = await self._cards(reply.thread_id)
        if outgoing.parts and not outgoing.steps_sent:
            await self._stores.note_sent(outgoing.key, _TEXT)
        for number, question in enumerate(reply.questions):
            if number < outgoing.steps_sent:
                continue
            if (shown := cards.get(question.number)) is not None:
                outgoing.steps_sent += 1
                if shown.get("said") != (notice := _digest_of_text(reply)):
                    await self._remember_card(reply.thread_id, question.number, {**shown, "said": notice})
                continue
            card = card_of(question, outgoing.opening)
            text = self._sessions.label(source) + card.text
            if outgoing.marks_step and not adapter.capabilities.dedupes:
                text = f"{wording.POSSIBLE_DUPLICATE}\n{text}"
            metadata = send_metadata(
                source,
                dedupe_key=f"{outgoing.key}/question/{number}",
                read=list(outgoing.address.read),
                final=True,
            )
            outgoing.marks_step = True
            result = await adapter.send_card(source.chat_id, replace(card, text=text), metadata)
            outgoing.marks_step = result.error_kind is not None and result.error_kind.may_have_arrived
            if not result.success:
                return result
            outgoing.steps_sent, outgoing.opening = outgoing.steps_sent + 1, ""
            if result.message_id is not None:
                self._sessions.new_cards[question.number] = result.message_id
            try:
                if outgoing.steps_sent < len(reply.questions):
                    await self._stores.note_sent(outgoing.key, _TEXT + outgoing.steps_sent)
                if result.message_id is not None:
                    card_id = {
                        "id": result.message_id,
                        "source": source.to_dict(),
                        "said": _digest_of_text(reply),
                        "at": self._clock.now(),
                    }
                    await self._remember_card(reply.thread_id, question.number, card_id)
            finally:
                self._sessions.new_cards.pop(question.number, None)
        return result

    async def _cards(self, thread_id: str) -> Mapping[str, Any]:
        """Return the cards that the chat of a thread shows, keyed by question number."""
        address = await self._sessions.address(thread_id)
        session = None if address is None else await self._sessions.load(address[0])
        return {} if session is None else session.settings.get("cards", {})

    async def _remember_card(self, thread_id: str, number: str, card_id: Json) -> None:
        address = await self._sessions.address(thread_id)
        if address is not None:
            await self._sessions.changed(
                address[0],
                lambda one: replace(one, settings=_with_card(one.settings, number, card_id)),
            )

    async def _handle_failure(
        self, row: OutboxMessage, reply: Reply, closes: _Closes, result: SendResult
    ) -> NotPerformed:
        """Decide whether a failed delivery is retried or becomes a dead letter."""
        kind = result.error_kind or SendErrorKind.UNKNOWN
        why = f"{kind}: {result.error}"
        if kind is SendErrorKind.RATE_LIMITED:
            outgoing = self._outgoing.get(row.outbox_id)
            return NotPerformed(
                error=why,
                untried=True,
                not_before_ms=result.retry_after_ms or UNTOLD_MS,
                may_have_arrived=outgoing is not None and outgoing.sent > 0,
            )
        self._metrics.delivery_failed(kind.value)
        if not kind.may_pass or row.attempt_count >= self._config.max_attempts:
            return await self._given_up(row, reply, closes, why)
        return NotPerformed(
            error=why, not_before_ms=result.retry_after_ms or 0, may_have_arrived=kind.may_have_arrived
        )

    async def _given_up(
        self, row: OutboxMessage, reply: Reply | None, closes: _Closes, why: str
    ) -> NotPerformed:
        """Make a reply a dead letter, and store the reason with the unanswered messages."""
        self._outgoing.pop(row.outbox_id, None)
        if reply is not None and reply.mail_key is not None and self._mail is not None:
            await self._mail.lost(reply.mail_key, f"the chat rejected the message: {why}")
        self._metrics.gave_up()
        self._presenter.seen.clear(closes.inbound_ids)
        return NotPerformed(
            error=why, final=True, also=closes.change(f"the reply could not be delivered: {why}")
        )


def _digest_of_text(reply: Reply) -> str:
    """Return a digest of the text above a question, for recognising a repeated text."""
    return sha256(reply.text.strip().encode()).hexdigest()[:16]


def _with_card(settings: Mapping[str, Json], number: str, card_id: Json) -> dict[str, Json]:
    """Return the settings of a session with a card added and the oldest cards removed."""
    cards = list(settings.get("cards", {}).items())[1 - _MAX_CARDS :]
    return {**settings, "cards": {**dict(cards), number: card_id}}


class MailOutbox:
    """Sends mail to chats through the bots of the gateway."""

    def __init__(self, adapters: Sequence[BasePlatformAdapter]) -> None:
        self._adapters = {adapter.platform.value: adapter for adapter in adapters}

    def reaches(self, address: ChatAddress) -> bool:
        """Return whether the gateway has a channel for the platform of a chat."""
        return address.platform in self._adapters

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
        """Store a message for a chat in an open transaction.

        The gateway delivers the message or reports its loss. The files are sent after the text. A second call
        with an equal `key` and an equal text has no effect. If `keeps_quiet` is true, the message waits until
        the chat's quiet hours end.

        Raises:
            IdempotencyConflict: Another text has this key.
        """
        adapter = self._adapters[address.platform]
        # A key is unique within one target. The target must not contain the bot's account: it is unknown
        # until this server has connected the bot, so the same message could be stored once before and once
        # after that.
        source = SessionSource(platform=adapter.platform, chat_id=address.chat_id, account=UNKNOWN_ACCOUNT)
        reply = Reply(
            kind=ReplyKind.NOTICE,
            thread_id=thread_name(address.platform, UNKNOWN_ACCOUNT, "notice"),
            text=text,
            source=source.to_dict(),
            mail_key=key,
            keeps_quiet=keeps_quiet,
            files=tuple(files),
        )
        # Earlier releases used this key. A message that they have stored must not be delivered again.
        outbox.enqueue((reply.draft(f"letter/{key}"),))
