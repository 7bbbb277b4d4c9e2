"""The messages that a project sees: its own, and those received from people and other projects.

A message is stored in the project of its sender. A blind copy does not make a message visible to a project.
"""

from collections.abc import Sequence

from postroom.contracts.mail import Message, Project, Recipient, ThreadParticipant
from postroom.contracts.records import replace
from postroom.mail.projects import PEOPLE_KEY
from postroom.stores.mail.access import ProjectReads, RecordReads

FEW = 20
"""Maximum number of other projects whose messages on a thread are read.

The same number of the project's own messages is searched for these projects.
"""
COUNTED = 200
"""Maximum number of messages that are counted on a thread for each other project."""
_LOOKS = 10
"""Maximum number of pages of other projects' messages that are searched for messages to this project."""


def here(reads: RecordReads, project: Project, messages: Sequence[Message]) -> list[Message]:
    """Return the messages that agents of a project sent or visibly received."""
    others = [message.id for message in messages if message.project_id != project.id]
    if not others:
        return list(messages)
    readers = reads.recipients(others)
    came = {
        number
        for number, recipients in readers.items()
        if any(recipient.project_slug == project.slug and recipient.kind != "bcc" for recipient in recipients)
    }
    return [message for message in messages if message.project_id == project.id or message.id in came]


def awaited(message: Message, recipients: Sequence[Recipient]) -> int:
    """Return the number of recipients who must still acknowledge a message."""
    if not message.ack_required or message.recalled_at is not None:
        return 0
    return sum(recipient.acked_at is None for recipient in recipients)


class Conversation:
    """The messages of a thread that a project can see."""

    def __init__(self, reads: RecordReads, projects: ProjectReads, project: Project, thread_id: str) -> None:
        """Read a thread for a project.

        `projects` contains the projects whose messages the caller may see.
        """
        self._reads = reads
        self._project = project
        self._thread_id = thread_id
        # The other projects whose messages may be on a thread.
        # These are the project to which people belong, and the projects of the recipients.
        people = projects.project(PEOPLE_KEY)
        fields = {} if people is None else {people.id: people}
        own = reads.thread_tail(project.id, thread_id, limit=FEW)
        readers = reads.recipients([message.id for message in own]) if own else {}
        slugs = {recipient.project_slug for several in readers.values() for recipient in several} - {
            project.slug
        }
        for slug in sorted(slugs)[:FEW]:
            other = projects.project(slug)
            if other is not None:
                fields[other.id] = other
        fields.pop(project.id, None)
        self._others = list(fields.values())

    def size(self) -> int:
        """Return the number of messages in the thread.

        At most 200 messages of each foreign project are counted.
        """
        own = self._reads.thread_size(self._project.id, self._thread_id)
        theirs = [message for other in self._others for message in self._thread_tail(other, COUNTED)]
        return own + len(self._here(theirs))

    def participants(self, *, among: int) -> list[ThreadParticipant]:
        """Return the participants of each project's newest `among` messages, most active first."""
        fields: dict[int, ThreadParticipant] = {}
        for project in (self._project, *self._others):
            counted = self._reads.thread_participants(
                project.id, self._thread_id, home_id=self._project.id, among=among
            )
            for participant in counted:
                known_participant = fields.get(participant.agent_id)
                fields[participant.agent_id] = (
                    replace(
                        participant,
                        wrote=participant.wrote + known_participant.wrote,
                        unread=participant.unread + known_participant.unread,
                    )
                    if known_participant
                    else participant
                )
        return sorted(fields.values(), key=lambda one: -one.wrote)

    def messages(self, *, limit: int, after: int = 0) -> list[Message]:
        """Return at most `limit` messages of the thread with ids above `after`, in order."""
        for _ in range(_LOOKS):
            windows = [
                self._reads.thread(project.id, self._thread_id, limit=limit, after=after)
                for project in (self._project, *self._others)
            ]
            # A full page may end before the last message of its project, so return no messages after that
            # page's end.
            known_to = min((window[-1].id for window in windows if len(window) == limit), default=None)
            messages = [
                message
                for window in windows
                for message in window
                if known_to is None or message.id <= known_to
            ]
            seen = self._here(messages)
            if seen or known_to is None:
                return seen[:limit]
            after = known_to
        return []

    def newest(self, *, limit: int) -> list[Message]:
        """Return the newest `limit` messages of the thread, in order."""
        windows = [self._thread_tail(project, limit) for project in (self._project, *self._others)]
        known_from = max((window[0].id for window in windows if len(window) == limit), default=0)
        return self._here([message for window in windows for message in window if message.id >= known_from])[
            -limit:
        ]

    def _thread_tail(self, project: Project, limit: int) -> list[Message]:
        return self._reads.thread_tail(project.id, self._thread_id, limit=limit)

    def _here(self, found: Sequence[Message]) -> list[Message]:
        return sorted(here(self._reads, self._project, found), key=lambda one: one.id)
