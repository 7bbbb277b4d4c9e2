"""Notices that the gateway itself sends. Notices are stored and delivered like answers."""

from postroom.contracts.errors import IdempotencyConflict, SubmissionRejected
from postroom.gateway.events import Button, ButtonPress, Card, MessageEvent
from postroom.gateway.replies import Reply, ReplyKind, is_chat, thread_name
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger
from postroom.stores.runs.ports import OutboxStore

_LOG = get_logger(__name__)


class Notices:
    """The notices that the gateway itself sends to chats, such as refusals."""

    def __init__(self, outbox: OutboxStore) -> None:
        self._outbox = outbox

    async def tell(
        self,
        source: SessionSource,
        text: str,
        *,
        key: str,
        answers: str | None = None,
        is_refusal: bool = False,
        choices: tuple[Button, ...] = (),
    ) -> None:
        """Send a text to a chat, once for each `key`.

        `answers` is the platform's id of the message that the text replies to. `is_refusal` marks a text that
        explains why the message was refused.

        Raises:
            StoreError: The notice could not be stored.
        """
        reply = Reply(
            kind=ReplyKind.NOTICE,
            thread_id=thread_name(source.platform.value, source.account, "notice"),
            text=text,
            choices=choices,
            source=source.to_dict(),
            answers=() if answers is None else (answers,),
            error=text if is_refusal else None,
            code=SubmissionRejected.code if is_refusal else None,
        )
        await self._enqueue(reply, key)

    async def refuse(self, event: MessageEvent, text: str, *, key: str) -> None:
        """Tell the sender of a message why the message is refused, once for each `key`.

        Raises:
            StoreError: The notice could not be stored.
        """
        if event.source is not None:
            await self.tell(event.source, text, key=key, answers=event.message_id, is_refusal=True)

    async def answer(
        self, event: MessageEvent, told: str | Card, *, key: str, is_answer: bool = True
    ) -> None:
        """Reply to the sender of a message with a text or a card, once for each `key`.

        Raises:
            StoreError: The notice could not be stored.
        """
        if event.source is not None:
            card = told if isinstance(told, Card) else Card(text=told)
            answers = event.message_id if is_answer else None
            await self.tell(event.source, card.text, key=key, answers=answers, choices=card.buttons)

    async def waits(self, event: MessageEvent, source: SessionSource, text: str, *, key: str) -> None:
        """Tell a chat that a message is waiting, once for each `key`.

        The notice is removed when an agent begins to process the message.

        Raises:
            StoreError: The notice could not be stored.
        """
        reply = Reply(
            kind=ReplyKind.NOTICE,
            thread_id=thread_name(source.platform.value, source.account, "notice"),
            text=text,
            source=source.to_dict(),
            waits_for=event.message_id,
        )
        await self._enqueue(reply, key)

    async def show_answered(self, thread_id: str, number: str, text: str) -> None:
        """Show the answer to a question on the question's card.

        The card is always delivered before the answer. Nothing is sent for a question that was not asked in a
        chat.

        Raises:
            StoreError: The row could not be stored.
        """
        if not is_chat(thread_id):
            return
        reply = Reply(kind=ReplyKind.CARD, thread_id=thread_id, text=text, question=number)
        await self._enqueue(reply, f"card/{number}")

    async def show_chosen(self, press: ButtonPress, text: str) -> None:
        """Replace the card of a pressed button with a text.

        Raises:
            StoreError: The row could not be stored.
        """
        source = press.source
        reply = Reply(
            kind=ReplyKind.CARD,
            thread_id=thread_name(source.platform.value, source.account, "notice"),
            text=text,
            source=source.to_dict(),
            card=press.message_id,
        )
        await self._enqueue(
            reply, f"card/{source.chat_id}/{press.message_id}/{press.press_id or press.value}"
        )

    async def keep_dead(self, platform: Platform, account: str, key: str, raw: str, why: str) -> None:
        """Store a platform update that could not be processed as a dead letter, once for each `key`.

        Raises:
            StoreError: The row could not be stored.
        """
        thread_id = thread_name(platform.value, account, "update")
        await self._enqueue(
            Reply(kind=ReplyKind.UPDATE, thread_id=thread_id, text=raw, error=why), f"update/{key}"
        )

    async def _enqueue(self, reply: Reply, key: str) -> None:
        try:
            await self._outbox.enqueue(reply.draft(key))
        except IdempotencyConflict:
            _LOG.info("notice.told_before", key=key)


def notice_key(what: str, inbound_id: int | None) -> str:
    """Return the key that prevents a second notice about an inbound message."""
    return f"{what}/line/{inbound_id}"  # earlier releases used this key, too: no notice is sent twice
