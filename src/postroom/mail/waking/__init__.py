"""Mail that wakes its reader: an agent with a runner is run when a message comes, and its sender is answered.

send ─▶ the message, on its reader's thread as well: a run begins with it, or it waits     (one transaction)
run ─▶ still unread? ─▶ delivered: the run has it ─▶ the reader's command
end ─▶ message read, its sender answered on the same thread                                (one transaction)
round ─▶ a message that has woken nobody yet ─▶ on its reader's thread, or to the reader's chat
"""
