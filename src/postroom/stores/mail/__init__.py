"""Mail over the named statements of a transaction, on either engine."""

from postroom.stores.mail.store import StoredMail
from postroom.stores.mail.tables import MailTables

__all__ = ["MailTables", "StoredMail"]
