"""What the chat gateway keeps in the file."""

from postroom.stores.sqlite.chat.intake_log import SqliteIntakeLog
from postroom.stores.sqlite.chat.people import SqliteChatPeople
from postroom.stores.sqlite.chat.sessions import SqliteChatSessions
from postroom.stores.sqlite.runs.desk import Desk


class SqliteChatStores:
    """What the gateway keeps, in the file that holds mail and runs. For one event loop."""

    def __init__(self, desk: Desk) -> None:
        self._intake_log = SqliteIntakeLog(desk)
        self._sessions = SqliteChatSessions(desk)
        self._people = SqliteChatPeople(desk)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write here as well."""
        return False

    @property
    def intake_log(self) -> SqliteIntakeLog:
        """The lines of all chats."""
        return self._intake_log

    @property
    def sessions(self) -> SqliteChatSessions:
        """Sessions of chats."""
        return self._sessions

    @property
    def people(self) -> SqliteChatPeople:
        """Who may write."""
        return self._people
