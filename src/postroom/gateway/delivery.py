"""Delivers what is to be said: outbox rows are claimed, sent in order within a thread, and acknowledged.

    claimed ─▶ where to? ─▶ sent, part by part ─▶ its inbound messages are done ─▶ acknowledged
                                │ may pass: again later, with growing pauses
                                │ will not pass, or has had its time: dead letter, its messages have failed
                                └ the answer was lost: again, and marked as a possible duplicate

A row is delivered at least once. It is acknowledged in the change that marks its inbound messages done; after
a crash before that, what is sent again says that it may be a duplicate.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from postroom.contracts.chat import (
    CHAT_LANE,
    MAX_INBOUND,
    ChatStores,
    InboundMessage,
    InboundMove,
    InboundStatus,
    chat_lock,
)
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import IllegalTransition, PostroomError
from postroom.contracts.messages import Json
from postroom.contracts.outbox import OutboxMessage, OutboxStore, line_lock
from postroom.contracts.people import ChatDelivery
from postroom.contracts.transactions import Store, Transaction
from postroom.gateway import wording
from postroom.gateway.config import DeliveryConfig
from postroom.gateway.drafts import Final
from postroom.gateway.events import Button, Card, SendErrorKind, SendResult
from postroom.gateway.metrics import GatewayMetrics
from postroom.gateway.outgoing import OutgoingMessage, ReplyAddress, parts_of
from postroom.gateway.platforms.base import BasePlatformAdapter, send_metadata
from postroom.gateway.replies import Reply, ReplyKind, target_name
from postroom.gateway.session import SessionSource
from postroom.gateway.streaming import StreamingPresenter

_LOG = structlog.get_logger(__name__)
_CLAIMED_AT_ONCE = 32
_MOST_CARDS = 50
NO_SUCH_CARD = (SendErrorKind.NOT_FOUND, SendErrorKind.BAD_FORMAT)


class Delivery:
    """Delivers for the bots that this process speaks for."""

    def __init__(  # noqa: PLR0913 - its collaborators by name
        self,
        store: Store,
        outbox: OutboxStore,
        stores: ChatStores,
        presenter: StreamingPresenter,
        config: DeliveryConfig,
        *,
        clock: Clock,
        metrics: GatewayMetrics,
        mail: ChatDelivery | None = None,
    ) -> None:
        self._mail = mail
        self._store = store
        self._outbox = outbox
        self._stores = stores
        self._sessions = presenter.sessions
        self._presenter = presenter
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._outgoing: dict[str, OutgoingMessage] = {}
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def round(self, adapter: BasePlatformAdapter) -> int:
        """Deliver what is due for one bot; return how many rows were claimed.

        Raises:
            StoreError: the outbox could not be looked at.
        """
        target = target_name(adapter.platform.value, adapter.account)
        lease = milliseconds(self._config.lease)
        rows = await self._outbox.claim(CHAT_LANE, target, lease_ms=lease, limit=_CLAIMED_AT_ONCE)
        self._under_way += 1
        self._idle.clear()
        try:
            async with asyncio.TaskGroup() as group:
                for ordered in _by_order(rows):
                    group.create_task(self._deliver_in_order(adapter, ordered))
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        return len(rows)

    async def idle(self) -> None:
        """Return when nothing is being delivered: what is on its way counts as active work."""
        await self._idle.wait()

    async def _deliver_in_order(self, adapter: BasePlatformAdapter, rows: Sequence[OutboxMessage]) -> None:
        for row in rows:
            await self._deliver(adapter, row)

    async def _deliver(self, adapter: BasePlatformAdapter, row: OutboxMessage) -> None:
        """Deliver a row, or have it tried later, or put it into the dead-letter queue."""
        try:
            reply = Reply.of(row)
        except (KeyError, TypeError, ValueError) as error:
            await self._give_up(row, None, f"it cannot be read: {type(error).__name__}")
            return
        try:
            await self._attempt(adapter, row, reply)
        except PostroomError as error:
            _LOG.warning("reply.left_to_lease", outbox_id=row.outbox_id, reason=error.describe())
        except Exception as error:  # an adapter broke its promise: the others' answers must not wait for it
            _LOG.exception("reply.adapter_broke", outbox_id=row.outbox_id)
            await self._failed(row, reply, SendResult.failed(SendErrorKind.UNKNOWN, type(error).__name__))

    async def _attempt(self, adapter: BasePlatformAdapter, row: OutboxMessage, reply: Reply) -> None:
        inbound = await self._stores.intake_log.messages(reply.inbound_ids[:MAX_INBOUND])
        is_closed = bool(inbound) and not any(message.status.is_open for message in inbound)
        if is_closed and row.may_have_arrived:
            await self._acknowledge(row)  # a crash came between its messages and its acknowledgement
            return
        if self._clock.now() - _owed_since(row) > milliseconds(self._config.max_age):
            await self._give_up(row, reply, "it is too old to be sent")
            return
        address = await self._address(reply, inbound)
        if address is None:
            await self._give_up(row, reply, "nobody knows where it goes")
            return
        result = await self._send(adapter, row, reply, address)
        if result.success:
            await self._settle(row, reply, inbound)
        else:
            await self._failed(row, reply, result)

    async def _address(self, reply: Reply, inbound: Sequence[InboundMessage]) -> ReplyAddress | None:
        answers = reply.answers or tuple(message.key.message_id for message in inbound)
        source = reply.source or (inbound[-1].body.get("source") if inbound else None)
        if source:
            return ReplyAddress(SessionSource.from_dict(source), answers)
        found = await self._sessions.address(reply.thread_id)
        return None if found is None else ReplyAddress(found[1], answers)

    async def _send(
        self, adapter: BasePlatformAdapter, row: OutboxMessage, reply: Reply, address: ReplyAddress
    ) -> SendResult:
        match reply.kind:
            case ReplyKind.CARD:
                return await self._update_card(adapter, reply, address)
            case ReplyKind.QUESTION if reply.questions:
                return await self._ask(adapter, row, reply, address)
            case _:
                outgoing = self._outgoing.get(row.outbox_id)
                if outgoing is None:
                    outgoing = self._outgoing[row.outbox_id] = self._begin(adapter, row, reply, address)
                return await outgoing.send_rest(adapter)

    def _begin(
        self, adapter: BasePlatformAdapter, row: OutboxMessage, reply: Reply, address: ReplyAddress
    ) -> OutgoingMessage:
        """Return the text as it is to be sent, in the place of its draft where one is shown here."""
        text = reply.text.strip() or wording.NO_ANSWER
        if row.may_have_arrived:
            text = f"{wording.POSSIBLE_DUPLICATE}\n{text}"
        shown = self._presenter.take_shown(reply.run_id) if reply.run_id else None
        if shown is not None and shown.message_id is not None:
            final = shown.draft.finish(text, now=self._clock.now())
            if isinstance(final, Final) and final.edits_first:
                return OutgoingMessage(row.outbox_id, address, list(final.parts), draft_id=shown.message_id)
            return OutgoingMessage(
                row.outbox_id, address, list(parts_of(text, adapter)), stale_id=shown.message_id
            )
        return OutgoingMessage(row.outbox_id, address, list(parts_of(text, adapter)))

    async def _ask(
        self, adapter: BasePlatformAdapter, row: OutboxMessage, reply: Reply, address: ReplyAddress
    ) -> SendResult:
        """Ask each question with a card of its own, and remember the cards."""
        outgoing = self._outgoing.setdefault(row.outbox_id, OutgoingMessage(row.outbox_id, address))
        result = SendResult.sent()
        for number, question in enumerate(reply.questions):
            if number < outgoing.sent:
                continue
            text = f"{reply.text}\n\n{question.text}" if reply.text and number == 0 else question.text
            buttons = (
                Button(label="Approve", value=f"approve {question.number}"),
                Button(label="Deny", value=f"deny {question.number}"),
            )
            metadata = send_metadata(address.source, dedupe_key=f"{row.outbox_id}/{number}", final=True)
            card = Card(text=text, buttons=buttons)
            result = await adapter.send_card(address.source.chat_id, card, metadata)
            if not result.success:
                return result
            outgoing.sent += 1
            if result.message_id is not None:
                await self._remember_card(reply.thread_id, question.number, result.message_id)
        return result

    async def _update_card(
        self, adapter: BasePlatformAdapter, reply: Reply, address: ReplyAddress
    ) -> SendResult:
        """Show on a question's card that it has its answer; without a card there is nothing to show."""
        found = await self._sessions.address(reply.thread_id)
        session = None if found is None else await self._sessions.load(found[0])
        cards = {} if session is None else session.settings.get("cards", {})
        if reply.question not in cards:
            return SendResult.sent()
        source, card = address.source, Card(text=reply.text)
        card_id = cards[reply.question]
        result = await adapter.update_card(source.chat_id, card_id, card, send_metadata(source))
        return SendResult.sent() if result.error_kind in NO_SUCH_CARD else result

    async def _remember_card(self, thread_id: str, number: str, card_id: str) -> None:
        address = await self._sessions.address(thread_id)
        if address is not None:
            await self._sessions.changed(
                address[0],
                lambda one: replace(one, settings=_with_card(one.settings, number, card_id)),
            )

    async def _settle(self, row: OutboxMessage, reply: Reply, inbound: Sequence[InboundMessage]) -> None:
        """Close the inbound messages that have their answer and acknowledge it, in one change."""
        if reply.mail_key is not None and self._mail is not None:
            await self._mail.arrived(reply.mail_key)
        lane = line_lock(row.lane, row.target)
        locks = {lane, *(chat_lock(message.key) for message in inbound)}
        move, asked = _move(reply.failed), [message.inbound_id for message in inbound]

        def change(tx: Transaction) -> bool:
            tx.lock(*sorted(locks))
            now = tx.now()
            found = tx.chats.inbound_by_id(asked) if asked else []
            open_ids = [message.inbound_id for message in found if message.may_become(move.status)]
            if open_ids:
                tx.chats.move_inbound(open_ids, move, now)
            return tx.outbox.ack(row.outbox_id, row.claim_token or "")

        self._outgoing.pop(row.outbox_id, None)
        if not await self._store.write(change, key=lane):
            _LOG.warning("reply.lease_ended_before_ack", outbox_id=row.outbox_id)
        self._metrics.delivered(self._clock.now() - row.created_at)
        if reply.run_id:
            self._presenter.forget(reply.run_id)

    async def _fail_inbound(self, reply: Reply, why: str) -> None:
        """Mark the inbound messages that get no answer; one that was closed otherwise stays so."""
        for inbound_id in reply.inbound_ids:
            try:
                await self._stores.intake_log.move([inbound_id], _move(why))
            except IllegalTransition as error:
                _LOG.info("message.closed_before", inbound_id=inbound_id, reason=error.message)

    async def _acknowledge(self, row: OutboxMessage) -> None:
        if not await self._outbox.ack(row.outbox_id, row.claim_token or ""):
            _LOG.warning("reply.lease_ended_before_ack", outbox_id=row.outbox_id)

    async def _failed(self, row: OutboxMessage, reply: Reply, result: SendResult) -> None:
        """Have it tried later, or not at all. What is behind it on its thread waits for it."""
        kind, tried = result.error_kind or SendErrorKind.UNKNOWN, row.attempt_count - 1
        self._metrics.delivery_failed(kind.value)
        if not kind.may_pass or tried + 1 >= self._config.max_attempts:
            await self._give_up(row, reply, f"{kind}: {result.error}")
            return
        await self._outbox.nack(
            row.outbox_id,
            row.claim_token or "",
            error=f"{kind}: {result.error}",
            delay_ms=max(result.retry_after_ms or 0, self._pause(tried)),
            may_have_arrived=kind.may_have_arrived,
        )

    async def _give_up(self, row: OutboxMessage, reply: Reply | None, why: str) -> None:
        """Put a row into the dead-letter queue, and say at its inbound messages why they have no answer."""
        _LOG.warning("reply.given_up", outbox_id=row.outbox_id, reason=why)
        self._outgoing.pop(row.outbox_id, None)
        if reply is not None and reply.mail_key is not None and self._mail is not None:
            await self._mail.lost(reply.mail_key, f"the chat did not take it: {why}")
        await self._outbox.nack(row.outbox_id, row.claim_token or "", error=why, final=True)
        self._metrics.gave_up()
        if reply is not None:
            await self._fail_inbound(reply, f"it could not be delivered: {why}")

    def _pause(self, tried: int) -> int:
        first, longest = milliseconds(self._config.first_retry), milliseconds(self._config.longest_retry)
        return int(min(first * 2 ** min(tried, 20), longest))


def _move(failed: str | None) -> InboundMove:
    return InboundMove(status=InboundStatus.FAILED if failed else InboundStatus.DONE, reason=failed)


def _by_order(rows: Sequence[OutboxMessage]) -> list[list[OutboxMessage]]:
    """Return rows that do not wait for one another apart; notices stay in order among themselves."""
    ordered: dict[str, list[OutboxMessage]] = {}
    for row in rows:
        ordered.setdefault(row.order_key or "", []).append(row)
    return list(ordered.values())


def _owed_since(row: OutboxMessage) -> int:
    """Return since when a row is to be delivered; one that somebody took out of that queue, since then."""
    return max(row.created_at, row.available_at) if row.attempt_count <= 1 else row.created_at


def _with_card(settings: Mapping[str, Json], number: str, card_id: str) -> dict[str, Json]:
    """Return a session's settings with one more card, the oldest of too many left out."""
    cards = list(settings.get("cards", {}).items())[1 - _MOST_CARDS :]
    return {**settings, "cards": {**dict(cards), number: card_id}}
