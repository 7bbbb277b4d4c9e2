"""The chat gateway: receives messages from chats and delivers the answers of agents, without losing any."""
