"""The people whom the operator has added, their chats, and the messages that they write on the pages."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from postroom.contracts.choices import Importance
from postroom.contracts.people import ChatAddress
from postroom.contracts.plain_answers import HUMAN, person_name
from postroom.mail.context import Caller
from postroom.mail.identity import find_person
from postroom.mail.people import name_person
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG, PERSONS, VISITOR, find_project
from postroom.mail.reservations import end_reservation, share_reservation
from postroom.mail.sending import THREAD
from postroom.mail.service import Mail
from postroom.services.administration import NamedPerson, PersonView, RemovedPerson
from postroom.services.calls import Calls
from postroom.stores.mail.access import MailReads, MailWrites

_POSTROOM = Caller(postroom=True, operator=True)
_MAX_PEOPLE = 10_000


class PeopleService:
    """Implements the operator's routes for people."""

    def __init__(
        self,
        mail: Mail,
        reaches: Callable[[ChatAddress], bool],
        answers: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Create the service.

        `reaches` returns whether a channel reaches a chat. `answers` returns whether a rule assigns chats to
        an address `human:name`.
        """
        self._mail = mail
        self._reaches, self._answers = reaches, answers

    async def add(self, name: str, chat: str | None) -> NamedPerson:
        """Add a person, or change the chat of a person who was added before."""
        address = None if chat is None else ChatAddress.parse(chat)
        return self._person_view(await name_person(self._mail, person_name(name), address), address)

    async def remove(self, name: str) -> RemovedPerson:
        """Remove a person as a recipient of mail.

        The person's messages are kept. `removed` is False for an unknown person. `answers` is true if a rule
        still assigns chats to the person.
        """
        name = person_name(name)
        person = await self._mail.store.read(lambda tx: tx.agent_addressed(PEOPLE_KEY, name))
        if person is None or person.agent.retired_at is not None:
            return {"removed": False, "answers": False}
        name = person.agent.name
        await self._mail.set_chat_address(PEOPLE_SLUG, name, None)
        arguments = {"project_key": PEOPLE_SLUG, "agent_name": name}
        await self._mail.call("retire_agent", arguments, caller=_POSTROOM)
        return {"removed": True, "answers": self._answers(f"{HUMAN}{name}")}

    async def everybody(self) -> Sequence[PersonView]:
        """Return all people, ordered by time of addition."""
        items = await self._mail.store.read(_everybody)
        return [
            {**self._person_view(name, address), "unread": unread, "visitor": is_visitor}
            for name, address, unread, is_visitor in items
        ]

    def _person_view(self, name: str, address: ChatAddress | None) -> NamedPerson:
        return {
            "name": name,
            "address": f"{HUMAN}{name}",
            "chat": None if address is None else address.name,
            "reached": None if address is None else self._reaches(address),
        }


def _everybody(tx: MailReads) -> list[tuple[str, ChatAddress | None, int, bool]]:
    project = tx.project(PEOPLE_KEY)
    if project is None:
        return []
    people = tx.agents(project.id, include_retired=False, limit=_MAX_PEOPLE)
    return [
        (person.name, tx.chat_address(person.id), tx.unread_count(person.id), person.program == VISITOR)
        for person in people
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSizes:
    """The limits of the message form."""

    subject_chars: int
    body_bytes: int
    files: int
    file_bytes: int
    files_bytes: int
    """Maximum number of bytes of all files together."""


@dataclass(frozen=True, slots=True)
class DraftFile:
    """A file that a person attaches to a message."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message that a person has written but not sent.

    `key` ensures that a repeatedly submitted form sends the message only once.
    """

    name: str
    """The person who writes the message."""
    body: str
    key: str
    to: tuple[str, ...] = ()
    subject: str = ""
    importance: Importance = "normal"
    ack_required: bool = False
    answers: int | None = None
    """The message that is answered, from which recipients and subject are taken."""
    to_all: bool = False
    """Whether the answer goes to all recipients of the answered message."""
    files: tuple[DraftFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A stored message, and the project whose pages show the message."""

    message: int
    slug: str


class MessageService:
    """Sends messages for people who have logged in to the pages with the server's token."""

    def __init__(self, mail: Mail, calls: Calls, people: PeopleService) -> None:
        self._mail = mail
        self._calls = calls
        self._people = people

    @property
    def limits(self) -> FormSizes:
        """Return the limits of the message form."""
        rules = self._mail.rules
        return FormSizes(
            subject_chars=rules.max_subject_chars,
            body_bytes=rules.max_body_bytes,
            files=rules.max_attachments,
            file_bytes=rules.max_attachment_bytes,
            files_bytes=rules.max_attachments_bytes,
        )

    def people(self, tx: MailReads) -> list[str]:
        """Return the names of the people who may write on the pages, ordered by time of addition."""
        home = tx.project(PEOPLE_KEY)
        named = [] if home is None else tx.agents(home.id, include_retired=False, limit=_MAX_PEOPLE)
        return [agent.name for agent in named if agent.program != VISITOR]

    async def name(self, name: str) -> str:
        """Add a person, and return the stored name.

        A known person does not change.

        Raises:
            InvalidName, NameTaken: The name is invalid or already used.
        """
        known_values = {value.casefold(): value for value in await self._mail.store.read(self.people)}
        if name.casefold() in known_values:
            return known_values[name.casefold()]  # adding them again would remove their chat
        return str((await self._people.add(name, None))["name"])

    async def send(self, slug: str, draft: Draft) -> Posted:
        """Send a person's message from a project's pages.

        Recipients without a project are agents of the project `slug`.

        Raises:
            UnknownAgent: No person has this name.
            PostroomError: The message was rejected, and not stored.
        """
        _, sender = await self._mail.store.read(lambda tx: find_person(tx, tx, draft.name))
        arguments: dict[str, Any] = {"sender_name": sender.name}
        if draft.answers is None:
            operation = "send_message"
            arguments |= {"to": [addressed(value, slug) for value in draft.to], "subject": draft.subject}
        else:
            operation = "reply_message"
            arguments |= {"message_id": draft.answers, "reply_all": draft.to_all}
        arguments |= {
            "project_key": PEOPLE_SLUG,
            "body_md": draft.body,
            "importance": draft.importance,
            "ack_required": draft.ack_required,
            "idempotency_key": f"page/{draft.key}",
            "attachments": await asyncio.to_thread(_attachment_arguments, draft.files),
        }
        sent = await self._calls.perform(operation, arguments, caller=_POSTROOM)
        if operation == "reply_message":
            # The answered message counts as acknowledged by the person, if the person is its recipient.
            person, answered = arguments["sender_name"], arguments["message_id"]
            readers = (await self._mail.store.read(lambda tx: tx.recipients([answered])))[answered]
            if any((reader.name, reader.project_slug) == (person, PEOPLE_SLUG) for reader in readers):
                await self.mark(person, answered, acknowledge=True)
        came = [delivery["project"] for delivery in sent["deliveries"]]
        message = int(sent["deliveries"][0]["payload"]["id"])
        return Posted(message=message, slug=slug if slug in came else PEOPLE_SLUG)

    async def mark(self, name: str, message: int, *, acknowledge: bool) -> None:
        """Record that a person has read or acknowledged a message.

        A second call does not change the time.

        Raises:
            UnknownAgent, UnknownMessage: No person has this name, or the message was not sent to them.
        """
        operation = "acknowledge_message" if acknowledge else "mark_message_read"
        marked = {"project_key": PEOPLE_SLUG, "agent_name": name, "message_id": message}
        await self._calls.perform(operation, marked, caller=_POSTROOM)

    async def end_reservation(self, slug: str, name: str, reservation: int, *, reason: str) -> None:
        """End an agent's reservation for a person, and notify the agent.

        Raises:
            UnknownAgent: No person has this name.
            UnknownReservation, StateError: The reservation does not exist, or it has ended.
        """

        def change(tx: MailWrites) -> None:
            home, person = find_person(tx, tx, name)
            project = find_project(tx, slug)
            tx.lock_projects({home.id, project.id})
            context = self._mail.context(tx, _POSTROOM)
            end_reservation(context, project, reservation, home=home, by=person, reason=reason)

        await self._mail.store.write(change)

    async def share_reservations(self, slug: str, reservations: Sequence[int]) -> None:
        """Change reservations of a project to shared reservations.

        Raises:
            UnknownReservation, StateError: A reservation does not exist, or it has ended; nothing was
                changed.
        """

        def change(tx: MailWrites) -> None:
            project = find_project(tx, slug)
            tx.lock_projects([project.id])
            for reservation in reservations:
                share_reservation(self._mail.context(tx, _POSTROOM), project, reservation)

        await self._mail.store.write(change)


def _attachment_arguments(files: Sequence[DraftFile]) -> list[dict[str, str]]:
    return [
        {"name": draft_file.name, "content_base64": b64encode(draft_file.content).decode()}
        for draft_file in files
    ]


def addressed(written: str, slug: str) -> str:
    """Return the full address of a recipient that a person typed on a project's pages."""
    if "@" in written or written.startswith(PERSONS) or written.startswith(THREAD):
        return written
    return f"{written}@{slug}"
