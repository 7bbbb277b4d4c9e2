"""Lines, sessions and people of chats on SQLite: functions over a connection, and the ports over them."""
