"""The chat gateway: messages from chats in, answers of agents out, one agent a session, nothing lost."""
