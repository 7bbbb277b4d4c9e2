"""Named tokens over tables in memory."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from postroom.contracts.errors import StoreError
from postroom.contracts.tokens import KeptToken
from postroom.stores.memory.tables import Tables

_DIGITS = 64
"""Of a SHA-256 in hexadecimal."""


class MemoryTokenReads:
    """Look-ups over the tables as they are."""

    _tables: Tables

    def token(self, token_id: str) -> KeptToken | None:
        """Return the token with this id."""
        return self._tables.tokens.get(token_id)

    def tokens_named(self, name: str) -> list[KeptToken]:
        """Return every token that has or had this name, oldest first."""
        return sorted(self._tables.tokens.where("name", name), key=lambda one: (one.created_at, one.id))

    def tokens(self, *, limit: int, after: str = "") -> list[KeptToken]:
        """Return tokens by id, those after `after`."""
        return list(islice((one for one in self._tables.tokens if one.id > after), limit))


class MemoryTokenWrites(MemoryTokenReads):
    """Changes of the tables, undone when the transaction is."""

    def put_token(self, token: KeptToken) -> None:
        """Store a token, or replace the one with its id."""
        if not token.scopes or len(token.hash) != _DIGITS:
            raise StoreError("the store refused: no scope, or no hash", value=token.id)
        if token.project_id is not None and (
            self._tables.projects.get(token.project_id) is None or "admin" in token.scopes
        ):
            raise StoreError("the store refused: no such project, or `admin` in one", value=token.id)
        others = [one for one in self._tables.tokens if one.id != token.id]
        if any(one.hash == token.hash for one in others) or (
            token.is_current and any(one.name == token.name and one.is_current for one in others)
        ):
            raise StoreError("the store refused: another token has the name or the hash", value=token.id)
        self._tables.tokens.put(token.id, token)

    def note_token_uses(self, uses: Mapping[str, int]) -> None:
        """Note by id when tokens were last used; an earlier instant and an unknown id change nothing."""
        for token_id, used_at in uses.items():
            kept = self._tables.tokens.get(token_id)
            if kept is not None and (kept.last_used_at is None or kept.last_used_at < used_at):
                self._tables.tokens.put(token_id, replace(kept, last_used_at=used_at))
