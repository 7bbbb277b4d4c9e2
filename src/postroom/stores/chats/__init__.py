"""Storage of the chat gateway: tables within a transaction, and ports based on a store."""
