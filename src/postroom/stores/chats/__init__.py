"""What the chat gateway keeps: tables within a transaction, and the ports over the store."""

from postroom.stores.chats.stores import StoredChats
from postroom.stores.chats.tables import SqlChatTables

__all__ = ["SqlChatTables", "StoredChats"]
