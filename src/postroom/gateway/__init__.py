"""The chat gateway: lines from chats in, answers of agents out, one agent a session, nothing lost."""
