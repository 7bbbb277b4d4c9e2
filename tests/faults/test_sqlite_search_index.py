"""The search index holds the words of the messages there are, and no others."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from conformance.promises.given import Office, an_office, never_made, put_message
from postroom.stores.mail.access import MailWrites
from postroom.stores.sqlite import SqliteStore
from sqlite_files import assert_index_agrees


def indexed_words(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab (main, messages_fts, row)")
        return {row[0] for row in connection.execute("SELECT term FROM temp.words")}


def assert_that_index_and_messages_agree(path: Path) -> None:
    """Compare the index with the texts that it was made from."""
    with closing(sqlite3.connect(path)) as connection:
        assert_index_agrees(connection)


def recall_at_once(tx: MailWrites, here: Office) -> None:
    tx.mark_recalled(
        put_message(tx, here.ada, [here.ben], subject="secret", body="hidden", topic="veil").id, 1
    )


@pytest.mark.parametrize("settled_before", [True, False])
async def test_a_recalled_message_leaves_no_word_behind(
    sqlite_store: SqliteStore, settled_before: bool
) -> None:
    here = await an_office(sqlite_store)
    await sqlite_store.write(lambda tx: put_message(tx, here.ada, [here.ben], subject="plum", body="kept"))
    sent = await sqlite_store.write(
        lambda tx: put_message(tx, here.ada, [here.ben], subject="secret", body="hidden", topic="veil").id
    )
    if settled_before:
        await sqlite_store.settle()
        assert {"secret", "hidden", "veil"} <= indexed_words(sqlite_store.path)
    await sqlite_store.write(lambda tx: tx.mark_recalled(sent, 1))
    await sqlite_store.write(lambda tx: recall_at_once(tx, here))
    await sqlite_store.settle()
    assert indexed_words(sqlite_store.path) == {"plum", "kept", "ada"}
    assert_that_index_and_messages_agree(sqlite_store.path)


async def test_an_undone_message_leaves_no_word_behind(sqlite_store: SqliteStore) -> None:
    here = await an_office(sqlite_store)
    await never_made(sqlite_store, lambda tx: put_message(tx, here.ada, [here.ben], body="hidden"))
    await sqlite_store.settle()
    await sqlite_store.write(lambda tx: put_message(tx, here.ada, [here.ben], subject="plum", body="kept"))
    await sqlite_store.settle()
    assert indexed_words(sqlite_store.path) == {"plum", "kept", "ada"}
    assert_that_index_and_messages_agree(sqlite_store.path)
