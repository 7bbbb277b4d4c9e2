"""Durable dispatch: the Mailbox, its recovery, and the workers that execute claimed dispatches."""
