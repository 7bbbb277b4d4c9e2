"""What finds messages by their words, and threads by their newest message: one way for each engine.

SQLite brings both up to date after writers were answered, many messages a commit: with each message it would
double what every commit writes. PostgreSQL does it in the change itself, whatever other servers commit.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from typing_extensions import override

from postroom.contracts.mail import BEST_AMONG, Message, Query, SearchHit, SearchOrder
from postroom.stores.mail import rows
from postroom.stores.mail.fts5 import fts5
from postroom.stores.mail.snippet import snippet
from postroom.stores.mail.tsquery import home, tsquery, tsvector
from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction

_NEWEST: Final = 2**62
_PAGE: Final = 500
_SEARCH: Final = {"newest": "mail.search_newest", "best": "mail.search_best"}


class SearchIndex(Protocol):
    """The index of one engine; it keeps nothing itself."""

    def add(self, tx: SqlTransaction, message: Message) -> None:
        """Take note of a new message."""
        ...

    def remove(self, tx: SqlTransaction, message_id: int) -> None:
        """Forget the words of a message."""
        ...

    def fill(self, tx: SqlTransaction) -> None:
        """Take note of every message of a store that was just filled."""
        ...

    def find(
        self,
        tx: SqlTransaction,
        project_id: int,
        query: Query,
        order: SearchOrder,
        *,
        limit: int,
        cursor: int,
    ) -> list[SearchHit]:
        """Return messages that match, as the port says."""
        ...


class Fts5Index(SearchIndex):
    """A table of FTS5, which follows the messages some time later; triggers take out what is recalled."""

    @override
    def add(self, tx: SqlTransaction, message: Message) -> None:
        """Nothing yet: the writer does it."""

    @override
    def remove(self, tx: SqlTransaction, message_id: int) -> None:
        """Nothing: a trigger does it."""

    @override
    def fill(self, tx: SqlTransaction) -> None:
        """Nothing yet: the writer does it."""

    @override
    def find(
        self,
        tx: SqlTransaction,
        project_id: int,
        query: Query,
        order: SearchOrder,
        *,
        limit: int,
        cursor: int,
    ) -> list[SearchHit]:
        values = _window(limit, cursor) | {"project_id": project_id, "match": fts5(query)}
        return [rows.search_hit(row) for row in tx.all(_SEARCH[order], values)]


class TsvectorIndex(SearchIndex):
    """A `tsvector` a message, made of words that we cut ourselves."""

    @override
    def add(self, tx: SqlTransaction, message: Message) -> None:
        values = {
            "message_id": message.id,
            "project_id": message.project_id,
            "thread_id": message.thread_id,
            "words": tsvector(message),
        }
        tx.run("mail.index_words", values)
        tx.run("mail.index_thread", values)

    @override
    def remove(self, tx: SqlTransaction, message_id: int) -> None:
        tx.run("mail.forget_words", {"message_id": message_id})

    @override
    def fill(self, tx: SqlTransaction) -> None:
        tx.one("mail.go_on_counting")
        after = 0
        while found := tx.all("mail.messages_after", {"after": after, "limit": _PAGE}):
            for row in found:
                self.add(tx, rows.message(row))
            after = found[-1][0]

    @override
    def find(
        self,
        tx: SqlTransaction,
        project_id: int,
        query: Query,
        order: SearchOrder,
        *,
        limit: int,
        cursor: int,
    ) -> list[SearchHit]:
        match = tsquery(query)
        if match is None:
            return []
        values = _window(limit, cursor) | {"home": home(project_id), "match": match}
        return [_hit(row, query) for row in tx.all(_SEARCH[order], values)]


INDEXES: Final[Mapping[Dialect, SearchIndex]] = {"sqlite": Fts5Index(), "postgres": TsvectorIndex()}
"""The index of each engine."""


def _window(limit: int, cursor: int) -> dict[str, object]:
    return {"limit": limit, "below": cursor or _NEWEST, "offset": cursor, "among": BEST_AMONG}


def _hit(row: Row, query: Query) -> SearchHit:
    message = rows.message(row)
    return SearchHit(message=message, snippet=snippet(message, query), rank=row[-1])
