"""Mail that wakes its recipient: if the recipient has a runner, a message starts a run that answers it.

send ─▶ one change: the message, also on its reader's thread, where it starts a run or waits
run ─▶ still unread? ─▶ delivered: the run has it ─▶ the reader's command
end ─▶ one change: message read, its sender answered on the same thread
round ─▶ a message that has woken nobody yet ─▶ on its reader's thread, or to the reader's chat
"""
