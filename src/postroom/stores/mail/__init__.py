"""Mail over the named statements of a transaction, on either engine."""

from postroom.stores.mail.tables import MailTables, StoredMail

__all__ = ["MailTables", "StoredMail"]
