"""Agent mail: identities, contacts, messages, threads, search, reservations and their archive.

Each action of a caller is an operation. An operation consists of a command with validated arguments, and a
synchronous function that returns the result within an open transaction. `operations` lists the operations,
and `service` executes them. This package does not depend on a store, protocol or clock.
"""
