"""Durable dispatch: the Mailbox, its recovery and what runs a claimed dispatch."""
