"""The durable run queue: the mailbox, its recovery, and the workers that execute claimed dispatches."""
