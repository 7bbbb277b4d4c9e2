"""The search index of messages and the list of threads by newest message, in one way per engine.

SQLite has an FTS5 table without the texts. The writer updates it after it has answered, many messages per
commit, because an update with each message would double what a commit writes. PostgreSQL has one `tsvector`
per message, of words that postroom splits itself; the change itself writes it, whatever other servers commit.
"""

from typing import Final

from msgspec import structs

from postroom.contracts import progress
from postroom.contracts.choices import SearchOrder
from postroom.contracts.mail import BEST_AMONG, Message, Query, SearchHit
from postroom.stores.codec import record
from postroom.stores.mail.check_values import message_of
from postroom.stores.mail.fts5 import fts5
from postroom.stores.mail.snippet import asked_of, snippet
from postroom.stores.mail.tsquery import home, tsquery, tsvector
from postroom.stores.mail.words import is_unspaced
from postroom.stores.sql_transaction import SqlTransaction

_NEWEST: Final = 2**62
_PAGE: Final = 1_000
FEW: Final = 50_000
"""Messages of a project whose ids are collected before a search on SQLite, whose index holds all projects."""
_SEARCH: Final = {"newest": "mail.search_newest", "best": "mail.search_best"}


def add(tx: SqlTransaction, message: Message) -> None:
    """Index a new message, on PostgreSQL."""
    values = {
        "message_id": message.id,
        "project_id": message.project_id,
        "thread_id": message.thread_id,
        "words": tsvector(message),
    }
    tx.run("mail.index_words", values)
    tx.run("mail.index_thread", values)


def fill(tx: SqlTransaction) -> None:
    """Index every message of a store that was just filled; on SQLite the writer does it."""
    if tx.dialect == "sqlite":
        return
    tx.one("mail.go_on_counting")
    after = 0
    while after := add_words(tx, after):
        pass
    add_threads(tx)


def add_words(tx: SqlTransaction, after: int) -> int:
    """Index the words of some messages after an id; return the last id, 0 at the end."""
    found = tx.all("mail.messages_after", {"after": after, "limit": _PAGE})
    for row in found:
        tx.run("mail.index_words", {"message_id": row[0], "words": tsvector(record(Message, row))})
    return int(found[-1][0]) if found else 0


def add_threads(tx: SqlTransaction) -> None:
    """Index the threads of all messages, on PostgreSQL.

    One statement does it, because a row that one transaction changes for each message gets slower each time.
    """
    tx.run("mail.index_threads")


def move(tx: SqlTransaction, source: int, target: int) -> None:
    """Move the index entries of a project's messages to another project.

    On SQLite the message has the project.
    """
    after, moved, values = 0, 0, {"project_id": source, "limit": _PAGE}
    while tx.dialect == "postgres" and (found := tx.all("mail.project_messages", {**values, "after": after})):
        messages, moved = [record(Message, row) for row in found], moved + len(found)
        progress.tell("moving search entries: messages", moved)
        tx.run("mail.forget_words", {"ids": [one.id for one in messages]})
        for one in messages:
            words = tsvector(structs.replace(one, project_id=target))
            if one.recalled_at is None:
                tx.run("mail.index_words", {"message_id": one.id, "words": words})
        after = messages[-1].id


def find(
    tx: SqlTransaction, project_id: int, query: Query, order: SearchOrder, *, limit: int, cursor: int
) -> list[SearchHit]:
    """Return matching messages, as the port describes."""
    values: dict[str, object] = {
        "limit": limit,
        "below": cursor or _NEWEST,
        "offset": cursor,
        "among": BEST_AMONG,
    }
    if tx.dialect == "sqlite":
        below = cursor if cursor and order == "newest" else _NEWEST
        values |= {"project_id": project_id, "match": fts5(query), **_ids(tx, project_id, below)}
        rows = tx.all(_SEARCH[order], values)
        messages = [(message_of(row), row[-1]) for row in rows]
    elif (match := tsquery(query)) is None:
        return []
    else:
        values |= {"home": home(project_id), "match": match}
        messages = [(message_of(row), row[-1]) for row in tx.all(_SEARCH[order], values)]
    return [
        SearchHit(message=message, snippet=snippet(message, query), rank=rank) for message, rank in messages
    ]


def partly_searched(tx: SqlTransaction, project_id: int, query: Query, *, limit: int) -> list[int]:
    """Return the newest messages that a search may have missed, as the port describes."""
    if not any(is_unspaced(word) for word, _ in asked_of(query)):
        return []
    return [row[0] for row in tx.all("mail.cut_messages", {"project_id": project_id, "limit": limit})]


def _ids(tx: SqlTransaction, project_id: int, below: int) -> dict[str, object]:
    """Return the range of ids of a project's messages below an id, and the project if it has few.

    Without the range, FTS5 would look up a word that is common elsewhere message by message in every other
    project. FTS5 uses only one upper bound, the first of a statement, so that a cursor cannot add another.
    """
    first, last, count = tx.all("mail.project_ids", {"project_id": project_id, "most": FEW + 1})[0]
    return {"first": first, "last": min(last, below - 1), "few": project_id if count <= FEW else None}
