"""Mail schedules, which repeatedly send messages from a person to agents by the usual operation."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

import msgspec

from postroom.contracts.catching_up import summary_lines
from postroom.contracts.choices import Importance
from postroom.contracts.clock import iso
from postroom.contracts.errors import UnknownSchedule
from postroom.contracts.schedules import Schedule
from postroom.mail.catching_up import summary
from postroom.mail.commands import SendMessage, read_command
from postroom.mail.context import Caller
from postroom.mail.identity import find_person
from postroom.mail.operations import OPERATIONS
from postroom.mail.projects import PEOPLE_SLUG, find_project
from postroom.mail.sending import named_readers
from postroom.mail.service import Mail, home_of, lock_for_command
from postroom.mail.waking.waker import OpenChange, Waker
from postroom.schedules.firing import MAX_LISTED, Firing, Schedules, Target, new_schedule
from postroom.services.administration import ScheduleView
from postroom.services.people import addressed
from postroom.stores.mail.access import MailWrites
from postroom.stores.store import SqlStore, Transaction

MAIL: Final = "mail"
"""The kind under which mail schedules are stored."""
_POSTROOM: Final = Caller(postroom=True, operator=True)
_SEND: Final = OPERATIONS["send_message"]
_DAY: Final = 24 * 3_600_000


class ScheduledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message that a schedule sends at each tick.

    Recipients without a project are agents of `project`.
    """

    project: str
    sender: str
    """The person in whose name the message is sent."""
    to: list[str]
    subject: str
    body: str
    importance: Importance = "normal"
    ack_required: bool = False
    catch_up: bool = False
    """Whether the message ends with a summary of the project since the schedule's last message."""

    def command(self) -> SendMessage:
        """Return the command that sends the message."""
        arguments = {
            "project_key": PEOPLE_SLUG,
            "sender_name": self.sender,
            "to": [addressed(value, self.project) for value in self.to],
            "subject": self.subject,
            "body_md": self.body,
            "importance": self.importance,
            "ack_required": self.ack_required,
        }
        return read_command(SendMessage, arguments)


class _Rehearsed(Exception):
    """Raised to roll back a successful trial of sending a message."""


class MessageTarget(Target):
    """Sends the messages of schedules."""

    def __init__(self, mail: Mail, waker: Waker) -> None:
        self._mail = mail
        self._waker = waker

    async def submit(self, firing: Firing) -> str:
        """Send the message of a tick, wake the recipients, and return the message id."""
        scheduled = msgspec.convert(firing.schedule.payload, ScheduledMessage)
        command = scheduled.command()

        def change(mail: MailWrites, made: OpenChange) -> str:
            tx = made.tx
            tx.lock(firing.lock)
            firing.begin(tx)
            lock_for_command(mail, command)
            context = self._mail.context(mail, _POSTROOM, waking=made)
            sent_command = command
            if scheduled.catch_up:
                # A summary since the schedule's last message, or of the last 24 hours.
                known = tx.schedules.named(MAIL, firing.schedule.name)
                last_id = None if known is None else known.last_id
                last = None if last_id is None else context.tx.message(int(last_id))
                begin = context.now - _DAY if last is None else last.created_at
                reader = Caller(postroom=True)  # readers of the pages may see all that this caller sees
                project = find_project(context.projects, scheduled.project)
                value = summary(replace(context, caller=reader), project, after=None, begin=begin)
                text = "\n".join(summary_lines(value, mark="- "))
                sent_command = msgspec.structs.replace(
                    command, body_md=f"{command.body_md}\n\n{text}".strip()
                )
            sent = _SEND.run(context, sent_command)
            message = str(sent["deliveries"][0]["payload"]["id"])
            firing.done(tx, message)
            return message

        return await self._waker.write(change, key=home_of(command), readers=named_readers(command))

    def is_open(self, tx: Transaction, made: str) -> bool:
        """Return whether a recipient has not read the message of an earlier tick yet."""
        message = tx.mail.message(int(made))
        if message is None or message.recalled_at is not None:
            return False
        return any(recipient.read_at is None for recipient in tx.mail.recipients([message.id])[message.id])


class MailSchedules:
    """Implements the operator's routes and the pages for schedules."""

    def __init__(self, mail: Mail, store: SqlStore, waker: Waker) -> None:
        self._mail = mail
        self._store = store
        self.kept = Schedules(store, {MAIL: MessageTarget(mail, waker)})

    async def add(  # noqa: PLR0913 - the options, by name
        self,
        name: str,
        message: ScheduledMessage,
        *,
        cron: str | None,
        every: timedelta | None,
        zone: str,
        missed: str,
        overlap: str,
        jitter: timedelta,
        replaces: bool,
    ) -> ScheduleView:
        """Store a schedule.

        A repeated call has no effect.

        Raises:
            InvalidSchedule: The schedule cannot be stored.
            UnknownProject, UnknownAgent, InvalidRecipients, TooLarge: The schedule's message could not be
                sent now.
            DuplicateRecord: Another schedule has this name, and `replaces` is False.
        """
        slug = await self._mail.slug(message.project)
        sender = await self._mail.store.read(lambda tx: find_person(tx, tx, message.sender)[1].name)
        message = msgspec.structs.replace(message, project=slug, sender=sender)
        payload = msgspec.to_builtins(message)
        if not message.catch_up:
            del payload["catch_up"]  # as earlier releases stored it, so that equal schedules stay equal
        schedule = new_schedule(
            MAIL,
            name,
            payload,
            cron=cron,
            every=every,
            zone=zone,
            missed=missed,
            overlap=overlap,
            jitter=jitter,
        )
        # Check that a message could be sent, without sending it.
        command = message.command()

        def change(tx: MailWrites) -> None:
            lock_for_command(tx, command)
            _SEND.run(self._mail.context(tx, _POSTROOM), command)
            raise _Rehearsed

        with suppress(_Rehearsed):
            await self._mail.store.write(change, key=home_of(command))
        return shown(await self.kept.add(schedule, replaces=replaces))

    async def listed(self, slug: str = "") -> Sequence[ScheduleView]:
        """Return the schedules of one or all projects in the form of responses, ordered by name."""
        return [shown(schedule) for schedule in await self._store.read(lambda tx: self.of_project(tx, slug))]

    def of_project(self, tx: Transaction, slug: str) -> Sequence[Schedule]:
        """Return the schedules of a project, or of all projects for "", ordered by name."""
        schedules = list[Schedule]()
        while page := tx.schedules.listed(
            MAIL, after=schedules[-1].name if schedules else "", limit=MAX_LISTED
        ):
            schedules += page
        return [schedule for schedule in schedules if slug in ("", schedule.payload["project"])]

    async def slug(self, project: str) -> str:
        """Return the slug of the project with a given path or slug."""
        return await self._mail.slug(project)

    async def named(self, name: str, slug: str = "") -> ScheduleView:
        """Return a schedule by name.

        With `slug`, the schedule must belong to that project.

        Raises:
            UnknownSchedule: No such schedule exists.
        """
        schedule = await self.kept.named(MAIL, name)
        if slug not in ("", schedule.payload["project"]):
            raise UnknownSchedule(f"{slug} has no schedule named {name[:80]!r}", value=name[:80])
        return shown(schedule)

    async def pause(self, name: str) -> ScheduleView:
        """Pause a schedule until `resume` is called."""
        return shown(await self.kept.pause(MAIL, name))

    async def resume(self, name: str) -> ScheduleView:
        """Resume a schedule with the next tick.

        Ticks during the pause are skipped.
        """
        return shown(await self.kept.resume(MAIL, name))

    async def trigger(self, name: str) -> int:
        """Send the message of a schedule now, and return the message id."""
        return int(await self.kept.trigger(MAIL, name))

    async def remove(self, name: str) -> bool:
        """Remove a schedule; return False if no schedule has the name.

        Sent messages are kept.
        """
        return await self.kept.remove(MAIL, name)


def shown(schedule: Schedule) -> ScheduleView:
    """Return a mail schedule in the form of responses, with times as text and durations in seconds."""
    message = msgspec.convert(schedule.payload, ScheduledMessage)
    return {
        "name": schedule.name,
        "state": "paused" if schedule.is_paused else "active",
        "project": message.project,
        "from": message.sender,
        "to": message.to,
        "subject": message.subject,
        "body": message.body,
        "catch_up": message.catch_up,
        "cron": schedule.cron,
        "every_seconds": None if schedule.every_ms is None else schedule.every_ms / 1000,
        "zone": schedule.zone,
        "missed": schedule.missed.value,
        "overlap": schedule.overlap.value,
        "jitter_seconds": schedule.jitter_ms / 1000,
        "next_at": None if schedule.next_at is None else iso(schedule.next_at),
        "sent": schedule.submitted,
        "passed_over": schedule.passed_over,
        "last_at": None if schedule.last_at is None else iso(schedule.last_at),
        "last_message": None if schedule.last_id is None else int(schedule.last_id),
        "last_error": schedule.last_error,
    }
