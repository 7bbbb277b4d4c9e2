"""Agent mail: identities, contacts, messages, threads, search, reservations and their archive.

Each thing a caller may do is one operation: a command (what is asked, validated), and a synchronous
function over an open transaction that decides and answers. `operations` lists them; `service` runs them.
This room knows no store, no protocol and no clock of its own.
"""
