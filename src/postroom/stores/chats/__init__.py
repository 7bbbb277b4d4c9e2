"""Storage of the chat gateway: tables within a transaction, and the ports that use them."""
