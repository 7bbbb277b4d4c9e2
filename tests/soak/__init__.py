"""Whole servers under `kill -9`: mail, runs, chats on three channels and runners at once; then the books are compared.

    make soak KILLS=2000
    make soak SECONDS=600 KILL_EVERY=60
    make soak-servers SECONDS=600

`world` has the server, `several` the servers of one PostgreSQL, `peers` their partners, `callers` the callers and their
notes, by `lines`; `killing` has them ask and lets faults happen, `books` compares their notes with the database.
"""
