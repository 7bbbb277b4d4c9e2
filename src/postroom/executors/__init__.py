"""What runs agents in place of the runtime: one folder for each way, each an executor of the mailbox."""
