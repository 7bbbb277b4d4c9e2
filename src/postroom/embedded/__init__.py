"""The run queue as a library: a mailbox that a program opens, runs as coroutines, and handles to wait by."""
