"""What the chat gateway keeps: tables within a transaction, and the ports over the store."""
