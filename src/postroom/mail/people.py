"""Adds people, and delivers messages to their chats.

The operator adds people. A person who writes from a chat and was not added is stored as a visitor.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from postroom.contracts.catching_up import summary_lines
from postroom.contracts.errors import (
    CursorAhead,
    CursorExpired,
    InvalidArgument,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
)
from postroom.contracts.people import ChatAddress, ChatWords
from postroom.contracts.plain_answers import HUMAN
from postroom.mail.catching_up import summary
from postroom.mail.context import Caller, ReadContext
from postroom.mail.outgoing import woken_by
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG, VISITOR, find_project
from postroom.mail.waking.mail_runs import RunCompletion
from postroom.stores.mail.access import MailReads, MailWrites

if TYPE_CHECKING:
    from postroom.mail.service import Mail


HUMAN_PROGRAM: Final = "human"
_OPERATOR = Caller(postroom=True, operator=True)
_DIGITS = 10


async def name_person(
    mail: "Mail", name: str, chat: ChatAddress | None, *, program: str = HUMAN_PROGRAM
) -> str:
    """Add a person, or change the chat address of an existing person, and return the person's name.

    Raises:
        InvalidName, NameTaken: The name cannot be used.
    """
    await mail.call("ensure_project", {"human_key": PEOPLE_KEY}, caller=_OPERATOR)
    who = {"project_key": PEOPLE_SLUG}
    former = await mail.store.read(lambda tx: tx.agent_addressed(PEOPLE_KEY, name))
    if former is not None and former.agent.retired_at is not None:
        await mail.call("unretire_agent", {**who, "agent_name": name}, caller=_OPERATOR)
    made = {**who, "name": name, "program": program, "model": "none"}
    view = await mail.call("register_agent", made, caller=_OPERATOR)
    await mail.set_chat_address(PEOPLE_SLUG, view["name"], chat)
    return str(view["name"])


def name_visitor(chat: ChatAddress) -> str:
    """Return the generated name of a visitor, which depends only on the chat address."""
    return f"{chat.platform}-{sha256(chat.name.encode()).hexdigest()[:_DIGITS]}"


def is_named(tx: MailReads, name: str) -> bool:
    """Return whether the operator has added a person who is still active."""
    known = tx.agent_addressed(PEOPLE_KEY, name)
    return known is not None and known.agent.retired_at is None and known.agent.program != VISITOR


_SERVER = Caller(postroom=True)


class StoredChatDelivery:
    """Records the delivery of messages to people who use chats."""

    def __init__(self, mail: "Mail") -> None:
        self._mail = mail

    async def arrived(self, key: str) -> None:
        """Record that a person's chat shows a message.

        A repeated call does nothing.

        Raises:
            StoreError: The delivery could not be recorded.
        """
        message_id, agent_id = woken_by(key)

        def change(tx: MailWrites) -> None:
            person = tx.agents_by_id([agent_id]).get(agent_id)
            address = None if person is None else tx.chat_address(agent_id)
            by = "chat" if address is None else f"chat:{address.name}"
            tx.mark_announced(agent_id, [message_id], by=by, now=tx.now())

        await self._mail.store.write(change)

    async def lost(self, key: str, why: str) -> None:
        """Notify the sender that a person's chat will not show the message.

        A repeated call does nothing.

        Raises:
            StoreError: The message to the sender could not be stored.
        """
        message_id, agent_id = woken_by(key)

        def change(tx: MailWrites) -> None:
            person = tx.agents_by_id([agent_id]).get(agent_id)
            if person is not None:
                completion = RunCompletion(
                    run_id=f"chat/{key}",
                    slug=PEOPLE_SLUG,
                    name=person.name,
                    message_ids=(message_id,),
                    text="",
                    failed=why,
                )
                completion.told(self._mail.context(tx, Caller()))

        await self._mail.store.write(change)

    async def prefer(self, chats: Sequence[ChatAddress]) -> str:
        """Make the first chat in `chats` the address of the chats' user, and return the address.

        Raises:
            UnknownAgent: No person, or more than one, has one of these chats as address.
            StoreError: The new address could not be stored.
        """

        def change(tx: MailWrites) -> str:
            project = tx.project(PEOPLE_KEY)
            if project is not None:
                tx.lock_projects([project.id])
            reached = {agent_id for address in chats for agent_id in tx.reached_at(address)}
            people = list(tx.agents_by_id(sorted(reached)).values())
            if len(people) != 1:
                value = "several people are" if people else "no person is"
                raise UnknownAgent(
                    f"{value} reached in these chats", value=[address.name for address in chats]
                )
            if tx.chat_address(people[0].id) != chats[0]:
                tx.put_chat_address(people[0].id, chats[0], now=tx.now())
            return f"{HUMAN}{people[0].name}"

        return await self._mail.store.write(change)

    async def catch_up(self, project: str, after: Mapping[str, int]) -> tuple[str, str, int]:
        """Return the slug of a project, a summary of recent events, and the cursor for the next summary.

        Raises:
            UnknownProject: There is no such project, or no name was given and there are several projects.
        """

        def look(tx: MailReads) -> tuple[str, str, int]:
            projects = (
                []
                if project
                else [project for project in tx.projects(limit=3) if project.slug != PEOPLE_SLUG]
            )
            if not project and len(projects) != 1:
                raise UnknownProject(
                    f"there are {'several' if projects else 'no'} projects", remedy="name one of them"
                )
            context: ReadContext = self._mail.context(tx, Caller(postroom=True))
            item = projects[0] if projects else find_project(context.projects, project)
            begin = tx.now() - 24 * 3_600_000
            try:
                project_summary = summary(context, item, after=after.get(item.slug), begin=begin)
            except (CursorAhead, CursorExpired):  # the log has been cut, or the database has been replaced
                project_summary = summary(context, item, after=None, begin=begin)
            return item.slug, "\n".join(summary_lines(project_summary, mark="- ")), project_summary["next"]

        return await self._mail.store.read(look)

    async def reply(self, chats: Sequence[ChatAddress], message: int, text: str, *, key: str) -> str:
        """Reply to a message as the person who uses the given chats, and return the recipients.

        If the reply does not answer an open question, the reason follows the recipients. Calls with the same
        key send only one reply.

        Raises:
            UnknownMessage: No person with one of these chats has received this message.
            PostroomError: The reply was rejected, and not stored.
        """
        person = await self._mail.store.read(lambda tx: _reader_at(tx, chats, message))
        if person is None:
            raise UnknownMessage(
                f"this chat has received no message {message}",
                value=message,
                remedy="use the number in the message's first line",
            )
        me = {"project_key": PEOPLE_SLUG, "message_id": message}
        arguments = {**me, "sender_name": person, "body_md": text, "idempotency_key": key}
        sent = await self._mail.call("reply_message", arguments, caller=_SERVER)
        await self._mail.call("acknowledge_message", {**me, "agent_name": person}, caller=_SERVER)
        reasons = [seen.partition(": ")[2] for delivery in sent["deliveries"] for seen in delivery["seen"]]
        whom = ", ".join(sent["deliveries"][0]["payload"]["to"])
        return ". ".join((whom, *(f"{reason[0].upper()}{reason[1:]}" for reason in reasons if reason)))

    async def pass_on(self, said: ChatWords) -> None:
        """Send a message from a chat to a person.

        If the chat is nobody's address, a new visitor is the sender.

        Raises:
            StoreError: The message may or may not have been stored.
            PostroomError: The message was rejected, and not stored.
        """
        sender = await self._mail.store.read(lambda tx: _reached_at(tx, said.chat))
        if sender is None:
            sender = await name_person(self._mail, name_visitor(said.chat), said.chat, program=VISITOR)
        if f"{HUMAN}{sender}".casefold() == said.person.casefold():
            raise InvalidArgument(
                f"messages to {said.person} arrive in this same chat",
                value=said.chat.name,
                remedy="answer here, or choose another person",
            )
        arguments = {
            "project_key": PEOPLE_SLUG,
            "sender_name": sender,
            "to": [said.person],
            "subject": said.subject,
            "body_md": said.text,
            "thread_id": said.thread_id,
            "idempotency_key": said.key,
        }
        await self._mail.call("send_message", arguments, caller=_SERVER)


def _reached_at(tx: MailReads, chat: ChatAddress) -> str | None:
    """Return the name of the person with a chat address, or of the first-added one of several people."""
    people = tx.agents_by_id(sorted(tx.reached_at(chat)))
    return next((people[person].name for person in sorted(people)), None)


def _reader_at(tx: MailReads, chats: Sequence[ChatAddress], message: int) -> str | None:
    """Return the name of the person who received a message in one of the chats, or None if nobody did."""
    readers = [
        recipient for recipient in tx.recipients([message])[message] if recipient.project_slug == PEOPLE_SLUG
    ]
    people = tx.agents_by_id([reader.agent_id for reader in readers])
    return next((person.name for person in people.values() if tx.chat_address(person.id) in chats), None)
