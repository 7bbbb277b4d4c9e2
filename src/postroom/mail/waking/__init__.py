"""Mail that wakes its recipients. If a recipient has a runner, a message starts a run that answers it.

send ─▶ one change: the message is stored, also on its recipient's thread, where it starts a run or waits
run ─▶ still unread? ─▶ assigned to the run ─▶ the recipient's program gets it
end ─▶ one change: the message is marked as read, and its sender is answered on the same thread
round ─▶ a message that has woken nobody yet ─▶ on its recipient's thread, or to the recipient's chat
"""
