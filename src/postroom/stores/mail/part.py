"""What the parts of `MailTables` share: the transaction, and whoever tells the logs of projects."""

from collections.abc import Mapping

from postroom.contracts.errors import InputError
from postroom.contracts.events import EventTables
from postroom.stores.mail.event_recorder import EventRecorder
from postroom.stores.sql_transaction import SqlTransaction


class Part:
    """Look-ups and changes of one kind of record within one transaction. Decides nothing."""

    _tx: SqlTransaction
    _log: EventTables
    _events: EventRecorder

    def _update(self, statement: str, values: Mapping[str, object], kind: type[InputError]) -> None:
        """Change the row `values["id"]`; raise an error of this kind when there is none."""
        if not self._tx.changed(statement, values):
            raise unknown(kind, values["id"])


def unknown(kind: type[InputError], row_id: object) -> InputError:
    """Return the error for a row that is not there."""
    return kind(f"nothing has the id {row_id}", value=row_id)
