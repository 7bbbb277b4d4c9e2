"""Sends chat messages as mail to the people who answer in place of an agent. No run is started.

message ─▶ stored ─▶ mail to the person, once ─▶ closed
                       │ to their inbox, and to the chat that they prefer
their answer ◀── mail to the person of the chat, or to its visitor ◀── the pages, or /reply
"""

from hashlib import sha256
from typing import Final

from postroom.contracts.chat import ChatSession
from postroom.contracts.errors import IdempotencyConflict, PostroomError, StoreError
from postroom.contracts.people import ChatWords
from postroom.gateway import wording
from postroom.gateway.config import short_name
from postroom.gateway.events import MessageEvent
from postroom.gateway.handover import build_message
from postroom.gateway.session import SessionSource
from postroom.ports import ChatDelivery
from postroom.stores.chats.intake_log import IntakeLog

_DIGITS: Final = 24


class ToPeople:
    """Sends chat messages as mail to the people who answer in place of an agent."""

    def __init__(self, intake_log: IntakeLog, mail: ChatDelivery | None) -> None:
        self._intake_log, self._mail = intake_log, mail

    async def pass_on(self, event: MessageEvent, source: SessionSource, session: ChatSession) -> str | None:
        """Mail a chat message to the person who answers in place of an agent.

        A second call for a message sends nothing. Return the reason why the mail was refused, or None if the
        mail was sent.

        Raises:
            StoreError: The mail may or may not have been stored. The message still waits.
        """
        person = source.agent or ""
        [inbound] = await self._intake_log.messages([event.inbound_id or 0])
        latest = event if inbound.revision <= event.revision else MessageEvent.from_body(inbound.body)
        words = build_message(latest, inbound, shared=source.chat_type != "dm").text()
        if latest.media:
            words = f"{words}\n\n{wording.left_behind(len(latest.media))}"
        if self._mail is None:
            return wording.not_passed_on(short_name(person), "this server has no mail")
        # Use the name of the group; in a direct chat, use the name of the sender.
        who = source.user_name or source.user_id or source.chat_id
        where = who if source.chat_type == "dm" else source.chat_name or source.chat_id
        chat_words = ChatWords(
            person=person,
            chat=source.address,
            thread_id=f"chat-{sha256(session.thread_id.encode()).hexdigest()[:_DIGITS]}",
            subject=wording.passed_on_from(where, source.platform.value),
            text=words.strip(),
            key=f"chat/{source.address.name}/{inbound.inbound_id}",
        )
        try:
            await self._mail.pass_on(chat_words)
        except StoreError:
            raise
        except IdempotencyConflict:  # the mail was stored before the message was edited
            return None
        except PostroomError as error:
            return wording.not_passed_on(short_name(person), error.message)
        return None
