"""Mail that wakes its reader: an agent with a runner is run when a message comes, and its sender is answered.

send ─▶ the message, and a row of the outbox for each reader that has a runner        (one transaction)
waker ─▶ still unread? ─▶ a message on the reader's thread, which starts a run or waits behind one
turns ─▶ still unread? ─▶ injected: the run has it in its hands ─▶ the reader's command
answers ◀─ an effect stored with the run's end ─▶ message read, its sender answered on the same thread
"""
