"""Messages of an earlier version are found by words as they are folded today once its index is cut anew."""

import asyncio
from contextlib import closing
from pathlib import Path

import psycopg
from psycopg import sql

from postroom.contracts.mail import Term
from postroom.stores.mail.store import MailStore
from postroom.stores.migrations import shipped_migrations
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres import schema as on_postgres
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite import migrate as on_sqlite
from postroom.stores.sqlite.connection import connect
from postroom.stores.stores import Stores

STEP = "words_folded_alike"
PROJECT = "INSERT INTO projects (id, slug, human_key, created_at, spelling) VALUES (7, 'p', '/p', 1, '/p')"
AGENT = "INSERT INTO agents (id, project_id, name, name_key, program, model, created_at, last_active_at) VALUES (3, 7, 'Ada', 'ada', '', '', 1, 1)"
MESSAGE = "INSERT INTO messages (id, project_id, sender_id, sender_name, thread_id, subject, body_md, created_ts) VALUES "
BODIES = ("数据库连接失败", "plain words", "ship it 🚀 with café and smørrebrød")


def rows() -> str:
    return ", ".join(
        f"({number}, 7, 3, 'Ada', 't', 's', '{body}', 1)" for number, body in enumerate(BODIES, start=1)
    )


async def _is_found(stores: Stores) -> None:
    mail = MailStore(stores.store)
    await mail.settle()
    for word, number in (("连接", 1), ("🚀", 3), ("cafe", 3), ("smorrebrod", 3), ("plain", 2), ("words", 2)):
        hits = await mail.read(lambda tx, word=word: tx.search(7, Term(word), order="newest", limit=9))
        assert [hit.message.id for hit in hits] == [number], word


def test_on_sqlite_the_step_fills_the_index_anew(tmp_path: Path) -> None:
    path = tmp_path / "postroom.db"
    with closing(connect(path)) as connection:
        shipped = shipped_migrations("sqlite")
        (version,) = (step.version for step in shipped if step.name == STEP)
        on_sqlite.migrate(connection, path, now=1, steps=[step for step in shipped if step.version < version])
        for statement in (PROJECT, AGENT, MESSAGE + rows()):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO messages_fts (rowid, subject, body_md, sender_name, topic)"
            " SELECT id, subject, body_md, sender_name, topic FROM messages WHERE id < 3"
        )
        connection.execute(
            "UPDATE search_index_progress SET indexed_to = 2"
        )  # the third is still to be indexed
    stores = SqliteStore.open(path)
    try:
        asyncio.run(_is_found(stores))
    finally:
        stores.close()


def test_on_postgresql_the_step_cuts_the_words_anew(postgres_dsn: str, a_schema: str) -> None:
    shipped = shipped_migrations("postgres")
    (version,) = (step.version for step in shipped if step.name == STEP)
    address = Address(dsn=postgres_dsn, schema=a_schema)
    with closing(Connection(address)) as connection:
        on_postgres.migrate(connection, address, steps=[step for step in shipped if step.version < version])
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(a_schema)))
        for statement in (PROJECT, AGENT, MESSAGE + rows()):
            session.execute(statement.replace(") VALUES", ") OVERRIDING SYSTEM VALUE VALUES").encode())
        for number, words in ((1, "数据库连接失败"), (2, "plain' 'words"), (3, "ship' 'it' 'with' 'cafe")):
            session.execute(
                "INSERT INTO message_words (message_id, words) VALUES (%s, CAST(%s AS tsvector))",
                (number, f"'#7' '{words}'"),
            )
    stores = PostgresStore.open(postgres_dsn, schema=a_schema)
    try:
        asyncio.run(_is_found(stores))
    finally:
        stores.close()
