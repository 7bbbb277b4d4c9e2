"""A whole server under `kill -9`: mail, runs, chats on three channels and runners at once; then the books are compared.

    make soak KILLS=2000
    make soak SECONDS=600 KILL_EVERY=60

`world` has the server and what it speaks to, `callers` those who ask it and note what they were told, `books` compares
their notes with the database.
"""
