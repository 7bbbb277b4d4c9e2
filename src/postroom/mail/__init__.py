"""Agent mail: identities, contacts, messages, threads, search, reservations and their archive.

Each action of a caller is one operation: a command with validated arguments, and a synchronous function over
an open transaction that decides and answers. `operations` lists them; `service` runs them. This package
depends on no store, no protocol and no clock.
"""
