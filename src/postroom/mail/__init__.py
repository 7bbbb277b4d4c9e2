"""Agent mail: identities, contacts, messages, threads, search, reservations and their archive.

Each action of a caller is one operation. An operation consists of a command with validated arguments, and a
synchronous function that decides on the result and returns it within an open transaction. `operations` lists
the operations, and `service` executes them. This package does not depend on any store, protocol or clock.
"""
