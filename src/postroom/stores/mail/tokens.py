"""Named tokens, and places in traces."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from typing_extensions import override

from postroom.contracts.tokens import KeptToken, TokenWrites
from postroom.contracts.tracing import TraceWrites
from postroom.stores.mail.part import Part
from postroom.stores.sql_transaction import Row

_COLUMNS = tuple(field.name for field in fields(KeptToken))


class Tokens(Part, TokenWrites):
    """What is kept of named tokens."""

    @override
    def token(self, token_id: str) -> KeptToken | None:
        row = self._tx.one("mail.token", {"id": token_id})
        return _token(row) if row else None

    @override
    def tokens_named(self, name: str) -> list[KeptToken]:
        return [_token(row) for row in self._tx.all("mail.tokens_named", {"name": name})]

    @override
    def tokens(self, *, limit: int, after: str = "") -> list[KeptToken]:
        return [_token(row) for row in self._tx.all("mail.tokens", {"after": after, "limit": limit})]

    @override
    def put_token(self, token: KeptToken) -> None:
        values = {name: getattr(token, name) for name in _COLUMNS}
        self._tx.run("mail.put_token", {**values, "scopes": " ".join(sorted(token.scopes))})

    @override
    def note_token_uses(self, uses: Mapping[str, int]) -> None:
        rows = [{"id": token_id, "used_at": used_at} for token_id, used_at in sorted(uses.items())]
        self._tx.run_many("mail.note_token_use", rows)


class Traces(Part, TraceWrites):
    """Where in a trace messages were written and runs were at work."""

    @override
    def traces(self, names: Sequence[str]) -> dict[str, str]:
        return {row[0]: row[1] for row in self._tx.all("mail.traces", {"names": names})}

    @override
    def put_trace(self, name: str, traceparent: str) -> None:
        self._tx.run("mail.put_trace", {"name": name, "traceparent": traceparent})


def _token(row: Row) -> KeptToken:
    found = dict(zip(_COLUMNS, row, strict=True))
    return KeptToken(**{**found, "scopes": frozenset(found["scopes"].split(" "))})
