"""The mail port over the named statements of one transaction."""

from postroom.contracts.events import EventTables
from postroom.contracts.outbox import OutboxTables
from postroom.stores.mail.announcements import Announcements
from postroom.stores.mail.effects import Effects
from postroom.stores.mail.event_recorder import EventRecorder
from postroom.stores.mail.messages import Messages
from postroom.stores.mail.people import People
from postroom.stores.mail.project_log import ProjectLog
from postroom.stores.mail.reservations import Reservations
from postroom.stores.mail.restoring import Restoring
from postroom.stores.mail.tokens import Tokens, Traces
from postroom.stores.mail.waking import Waking
from postroom.stores.sql_transaction import SqlTransaction


class MailTables(
    People,
    Messages,
    Reservations,
    Announcements,
    Waking,
    Tokens,
    Traces,
    ProjectLog,
    Effects,
    Restoring,
):
    """Look-ups and changes of mail within one transaction; one object a transaction.

    Every part adds the methods of one kind of record; `EventRecorder` tells the logs of projects.
    """

    def __init__(self, tx: SqlTransaction, outbox: OutboxTables, log: EventTables) -> None:
        self._tx = tx
        self._outbox = outbox
        self._log = log
        self._events = EventRecorder(tx, log)
        self._known = {}
        self._positions = {}
